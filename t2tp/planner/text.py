"""Formats plans and proposals for a terminal."""

from collections.abc import Sequence
from typing import Any

from t2tp.hparam import HParams
from t2tp.planner.advice import changes
from t2tp.planner.plan import PipelinePlan, Plan
from t2tp.planner.search import Proposal, days_of, pareto, price_of
from t2tp.step.work import PURPOSES

FITS = {"yes": "fits", "no": "does not fit", "borderline": "fits only without headroom"}


def plan_text(plan: Plan) -> str:
    """Formats a plan."""
    low, high = plan.interval
    part, share = plan.bottleneck
    lines = [
        f"{plan.title} on {plan.devices} devices of {plan.cluster}",
        f"  mesh {plan.mesh_shape or 'of one device'}, layout {plan.layout or '(none)'}",
        f"  {plan.parameters:,} parameters, {plan.tokens:,} tokens a step",
        "",
        f"Step: {duration(plan.seconds)} (from {duration(low)} to {duration(high)})",
        f"  {plan.tokens_per_second:,.0f} tokens/s, {plan.tokens_per_second / plan.devices:,.1f}"
        " per device",
        f"  MFU {plan.mfu:.1%} with all scores of attention, {plan.causal_mfu:.1%} without the"
        f" masked ones, at {plan.peak / 1e12:,.4g} TFLOP/s {plan.peak_dtype}",
        f"  {plan.share(is_collective=False):.0%} computation,"
        f" {plan.share(is_collective=True):.0%} exposed communication"
        f" ({plan.hidden_share:.0%} of the communication is hidden), pipeline bubble"
        f" {plan.bubble:.0%}",
        f"  bound by {part} ({share:.0%} of the step)",
    ]
    if plan.pipeline is not None:
        lines.append(f"  {pipeline_text(plan.pipeline)}")
    if plan.price_per_hour:
        price = f"{price_of(plan, 1e9):,.2f} a billion tokens"
        lines.append(f"  {price}, at {plan.price_per_hour:g} a device-hour")
    return "\n".join([*lines, "", *_memory(plan), "", *_costs(plan)])


def advice_text(
    hparams: HParams, plan: Plan, tried: Sequence[tuple[dict[str, Any], Plan]] = ()
) -> str:
    """Formats the changes that may help, with their plans if they were planned."""
    if not tried:
        names = [hparams_text(values) for values in changes(hparams, plan)]
        return f"Changes to try, which --advise plans: {'; '.join(names) or 'none'}"
    lines = ["Changes, each planned alone"]
    for values, other in tried:
        memory = f"{size(other.memory_total)}, {FITS[other.fits]}"
        lines.append(f"  {duration(other.seconds):>12}  {hparams_text(values)} ({memory})")
    return "\n".join(lines)


def hparams_text(values: dict[str, Any]) -> str:
    """Formats hparams as --hparams reads them."""
    return ",".join(f"{name}={str(value).lower()}" for name, value in values.items())


def search_text(proposals: Sequence[Proposal], train_tokens: float = 0.0) -> str:
    """Formats the proposals, fastest first; a * marks the Pareto front."""
    front = pareto(proposals)
    best = proposals[0].plan
    lines = [
        f"{best.title} on {best.devices} devices of {best.cluster}: {best.tokens:,} tokens a step",
        "",
        f"    step (interval)                MFU    memory of {size(best.memory_limit)}",
    ]
    for each in proposals:
        low, high = (duration(s) for s in each.plan.interval)
        step = f"{duration(each.plan.seconds)} ({low} to {high})"
        memory = f"{size(each.plan.memory_total):>9}"
        mark = "*" if each in front else " "
        lines += [f"  {mark} {step:30} {each.plan.mfu:5.1%}  {memory}", f"      {each.flags}"]
        if each is not proposals[0]:
            lines.append(f"      {slower_text(best, each.plan)}")
    lines += ["", "*: no other is both faster and smaller."]
    if train_tokens:
        lines.append(f"The fastest takes {training_text(best, train_tokens)}.")
    return "\n".join(lines)


def slower_text(best: Plan, other: Plan) -> str:
    """Names the parts that make a step slower than the best step, and a part that is faster."""
    more, less = other.parts, best.parts
    changes = sorted(((more[name] - less[name], name) for name in {**more, **less}), reverse=True)
    least = best.seconds / 1000
    reasons = [f"{name} +{duration(n)}" for n, name in changes[:2] if n > least]
    reasons += [f"{name} -{duration(-n)}" for n, name in changes[-1:] if -n > least]
    gap = duration(other.seconds - best.seconds)
    return f"{gap} slower: {', '.join(reasons) or 'a little in each part'}"


def training_text(plan: Plan, tokens: float) -> str:
    """Formats the days that a training takes, and its price if the price is known."""
    price = price_of(plan, tokens)
    costs = f" and costs {price:,.0f}" if price else ""
    return f"{days_of(plan, tokens):,.1f} days on {plan.devices:,} devices{costs}"


def pipeline_text(pipeline: PipelinePlan) -> str:
    """Describes the stages and their schedule in a sentence."""
    layers = [stage.layers for stage in pipeline.by_stage]
    each = str(layers[0]) if len(set(layers)) == 1 else f"{min(layers)} to {max(layers)}"
    each += " layer" if each == "1" else " layers"
    chunks = f" in {pipeline.chunks} chunks" if pipeline.chunks > 1 else ""
    busiest = pipeline.by_stage[pipeline.busiest]
    return (
        f"{pipeline.stages} stages of {each}{chunks}, {pipeline.schedule},"
        f" {pipeline.microbatches:,} microbatches: stages are idle {pipeline.idle_share:.1%} of the"
        f" schedule; stage {pipeline.busiest} is busiest, with {duration(busiest.forward)} forward"
        f" and {duration(busiest.backward)} backward a microbatch"
    )


def _memory(plan: Plan) -> list[str]:
    free = plan.memory_limit - plan.usable_memory
    lines = [
        f"Memory of a device at the peak ({plan.memory_point}): {size(plan.memory_total)} of"
        f" {size(plan.memory_limit)}, {FITS[plan.fits]} (headroom {size(free)}, allowance for"
        f" fragmentation {size(plan.fragmentation)})"
    ]
    parts = [(plan.memory.get(purpose), what) for purpose, what in PURPOSES.items()]
    return lines + [f"  {size(n):>12}  {what}" for n, what in parts if n]


def _costs(plan: Plan) -> list[str]:
    lines = ["Seconds by kind (collectives: count and bytes that a device sends)"]
    for cost in plan.costs:
        if cost.seconds + cost.hidden < plan.seconds / 1000:
            continue
        sent = f", {size(cost.num_bytes)}" if cost.is_collective else ""
        hidden = f", {duration(cost.hidden)} more hidden" if cost.hidden else ""
        what = f"{cost.phase}: {cost.kind} ({cost.count:,}{sent}{hidden})"
        lines.append(f"  {duration(cost.seconds):>12}  {what}")
    return lines


def duration(seconds: float) -> str:
    """Formats seconds: `1.23 s`, `4.56 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{_digits(seconds / scale)} {unit}"
    return f"{_digits(seconds * 1e6)} us"


def size(num_bytes: float) -> str:
    """Formats bytes: `1.5 GiB`."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(num_bytes) >= scale:
            return f"{_digits(num_bytes / scale)} {unit}"
    return f"{num_bytes:,.0f} B"


def _digits(number: float) -> str:
    """Formats a number with at least three digits, and without an exponent."""
    return f"{number:,.3g}" if abs(number) < 999.5 else f"{number:,.0f}"
