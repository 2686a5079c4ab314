"""What a search has found, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from t2tp.planner.plan import Plan
from t2tp.planner.search import Found, days_of, pareto, price_of
from t2tp.planner.text import duration, size


def search_text(found: Sequence[Found], train_tokens: float = 0.0) -> str:
    """Formats the layouts that were found, fastest first; a * marks the Pareto front."""
    front = pareto(found)
    best = found[0].plan
    lines = [
        f"{best.title} on {best.devices} devices of {best.cluster}: {best.tokens:,} tokens a step",
        "",
        "    step (interval)                 MFU    memory     mesh, layout and hparams",
    ]
    for each in found:
        plan = each.plan
        low, high = (duration(s) for s in plan.interval)
        step = f"{duration(plan.seconds)} ({low} to {high})"
        border = " borderline" if plan.fits == "borderline" else ""
        mark = "*" if each in front else " "
        memory = f"{size(plan.memory_total):>9}"
        lines.append(f"  {mark} {step:30} {plan.mfu:5.1%}  {memory}  {_chosen(each)}{border}")
    lines += ["", "* no other is both faster and smaller", "", "The fastest, for t2tp_trainer:"]
    lines.append(f"  {found[0].candidate.flags()}")
    if train_tokens:
        lines.append(f"It takes {training_text(best, train_tokens)}.")
    return "\n".join(lines)


def training_text(plan: Plan, tokens: float) -> str:
    """Returns the days that a training takes, and its price if that is known."""
    price = price_of(plan, tokens)
    costs = f" and costs {price:,.0f}" if price else ""
    return f"{days_of(plan, tokens):,.1f} days on {plan.devices:,} devices{costs}"


def _chosen(found: Found) -> str:
    values = found.candidate.hparams()
    mesh = values["mesh_shape"] or "one device"
    parts = [f"microbatches {values['microbatches']}", f"recompute {values['recompute']}"]
    parts.append(f"zero {values['zero_stage']}")
    if values["sequence_parallel"]:
        parts.append("sequence parallel")
    if found.candidate.stages > 1:
        chunks = f" of {found.candidate.chunks} chunks" if found.candidate.chunks > 1 else ""
        parts.append(f"{found.candidate.schedule}{chunks}")
    return f"{mesh}  {', '.join(parts)}"
