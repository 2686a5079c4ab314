"""A plan as text for a terminal."""

from __future__ import annotations

from t2tp.planner.plan import PipelinePlan, Plan
from t2tp.planner.work import PURPOSES


def text(plan: Plan) -> str:
    """Formats a plan."""
    low, high = plan.interval
    lines = [
        f"{plan.title} on {plan.devices} devices of {plan.cluster}",
        f"  mesh {plan.mesh_shape or 'of one device'}, layout {plan.layout or '(none)'}",
        f"  {plan.parameters:,} parameters, {plan.tokens:,} tokens a step",
        "",
        f"Step: {duration(plan.seconds)} (from {duration(low)} to {duration(high)})",
        f"  {plan.tokens_per_second:,.0f} tokens/s, {plan.tokens_per_second / plan.devices:,.1f}"
        " of each device",
        f"  MFU {plan.mfu:.1%} with attention counted whole, {plan.causal_mfu:.1%} with its causal"
        f" half, of {plan.peak / 1e12:,.4g} TFLOP/s {plan.peak_dtype}",
        f"  {plan.share(is_collective=False):.0%} computation,"
        f" {plan.share(is_collective=True):.0%} communication that is not hidden;"
        f" {plan.hidden_share:.0%} of the communication is hidden; pipeline bubble"
        f" {plan.bubble:.0%}",
        f"  bound by {plan.bound}",
    ]
    if plan.pipeline is not None:
        lines += _pipeline(plan.pipeline)
    if plan.price_per_hour:
        price = plan.price_per_hour * plan.devices * plan.seconds / 3600 / plan.tokens * 1e9
        lines.append(f"  {price:,.2f} a billion tokens, at {plan.price_per_hour:g} a device-hour")
    lines += ["", *_memory(plan), "", *_costs(plan)]
    return "\n".join([*lines, *plan.notes])


def _pipeline(pipeline: PipelinePlan) -> list[str]:
    layers = [stage.layers for stage in pipeline.by_stage]
    each = str(layers[0]) if len(set(layers)) == 1 else f"{min(layers)} to {max(layers)}"
    each += " layer" if each == "1" else " layers"
    chunks = f" in {pipeline.chunks} chunks" if pipeline.chunks > 1 else ""
    busiest = pipeline.by_stage[pipeline.busiest]
    return [
        f"  {pipeline.stages} stages of {each}{chunks}, {pipeline.schedule}, of"
        f" {pipeline.microbatches:,} microbatches: stages are idle"
        f" {pipeline.idle_share:.1%} of the schedule; the others wait for stage"
        f" {pipeline.busiest}, which takes {duration(busiest.forward)} forward and"
        f" {duration(busiest.backward)} backward a microbatch",
    ]


def _memory(plan: Plan) -> list[str]:
    fits = {"yes": "fits", "no": "does not fit", "borderline": "borderline: it may fit or not"}
    lines = [
        f"Memory of a device at the peak ({plan.memory_point}): {size(plan.memory_total)} of"
        f" {size(plan.memory_limit)}, {fits[plan.fits]}"
    ]
    for purpose, what in PURPOSES.items():
        if plan.memory.get(purpose):
            lines.append(f"  {size(plan.memory[purpose]):>12}  {what}")
    return lines


def _costs(plan: Plan) -> list[str]:
    lines = ["Seconds by kind"]
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
    if seconds >= 1:
        return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def size(num_bytes: float) -> str:
    """Formats bytes: `1.5 GiB`."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:,.3g} {unit}"
    return f"{num_bytes:,.0f} B"
