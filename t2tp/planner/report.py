"""A plan, or the proposals of a search, as a report: text, and a page with charts."""

from collections.abc import Iterator, Sequence

from t2tp.planner.plan import HOST, PipelinePlan, Plan
from t2tp.planner.search import Proposal, days_of, pareto, price_of
from t2tp.report.charts import Bar, Dot, scatter, stacked_bars
from t2tp.report.parts import WARNING, Drawing, Facts, Note, Part, Report, Section, Table
from t2tp.report.units import duration, size
from t2tp.step.memory import FITS, PURPOSES
from t2tp.step.work import COMPUTE_BOUND, PHASES

_COLORS = (
    *("#2f6fde", "#7b61d1", "#33a29b", "#e39a2d", "#e06c5c"),
    *("#5aa7e6", "#8f9aa8", "#b9d36c", "#d9b38c", "#c9ced6"),
)
_MEMORY_COLORS = dict(zip(PURPOSES.values(), _COLORS, strict=True))
_COMPUTE, _MEMORY = "matmuls and attention", "memory-bound operations"
_EXPOSED, _BUBBLE = "exposed communication", "pipeline bubble"
_PARTS = {_COMPUTE: "#2f6fde", _MEMORY: "#8fb6f2", _EXPOSED: "#e06c5c", _BUBBLE: "#c9ced6"}
_STAGE_PARTS = {
    "forward passes": "#4e79a7",
    "backward passes": "#f28e2b",
    "waiting and messages": "#c9ced6",
}
# What may relieve a bottleneck.
_SEARCH = "--search plans other layouts and settings, --fix keeps some of them"
_HINTS = {HOST: "t2tp_trainer --iterations_per_loop=8 launches once in 8 steps"}
# Max number of stages with a bar each.
_MOST_STAGES = 16


def plan_report(plan: Plan) -> Report:
    """Returns the report of a plan."""
    sections = [Section("step", "Step", [Facts(_facts(plan)), _timeline(plan)])]
    if plan.pipeline is not None:
        sections.append(Section("stages", "Pipeline stages", [*_stages(plan.pipeline)]))
    title = f"Memory of a device at the peak ({plan.memory_point})"
    sections.append(Section("memory", title, [*_memory(plan)]))
    title = "Seconds by kind (collectives: bytes that a device sends)"
    sections.append(Section("costs", title, [_costs(plan)]))
    return Report(_title(plan), sections)


def _title(plan: Plan) -> str:
    return f"{plan.title} on {plan.devices:,} devices of {plan.cluster}"


def _facts(plan: Plan) -> list[str]:
    low, high = plan.interval
    part, share = plan.bottleneck
    facts = [
        f"{duration(plan.seconds)} (from {duration(low)} to {duration(high)})",
        f"mesh {plan.mesh_shape or 'of one device'}, layout {plan.layout or '(none)'}",
        f"{plan.parameters:,} parameters, {plan.tokens:,} tokens a step",
        f"{plan.tokens_per_second:,.0f} tokens/s, {plan.tokens_per_second / plan.devices:,.1f} per"
        " device",
        f"MFU {plan.mfu:.1%} with all scores of attention, {plan.causal_mfu:.1%} without the masked"
        f" ones, at {plan.peak / 1e12:,.4g} TFLOP/s {plan.peak_dtype}",
        f"{plan.share(is_collective=False):.0%} computation, {plan.share(is_collective=True):.0%}"
        f" exposed communication ({plan.hidden_share:.0%} of the communication is hidden), pipeline"
        f" bubble {plan.bubble:.0%}",
        f"bound by {part} ({share:.0%} of the step): {_HINTS.get(part, _SEARCH)}",
    ]
    if plan.price_per_hour:
        price = f"{price_of(plan, 1e9):,.2f} a billion tokens"
        facts.append(f"{price}, at {plan.price_per_hour:g} a device-hour")
    return facts + [f"{WARNING}{warning}" for warning in plan.warnings]


def _timeline(plan: Plan) -> Drawing:
    phases: dict[str, dict[str, float]] = {phase: dict.fromkeys(_PARTS, 0.0) for phase in PHASES}
    for cost in plan.costs:
        part = _COMPUTE if cost.kind in COMPUTE_BOUND else _MEMORY
        phases[cost.phase][_EXPOSED if cost.is_collective else part] += cost.seconds
    in_order = [part for parts in phases.values() for part in parts.items()]
    in_order.append((_BUBBLE, plan.bubble * plan.seconds))
    bars = [Bar("whole step", in_order, duration(plan.seconds))]
    bars += [
        Bar(name, list(parts.items()), duration(sum(parts.values())))
        for name, parts in phases.items()
    ]
    return Drawing(stacked_bars(bars, _PARTS, duration))


def _stages(pipeline: PipelinePlan) -> Iterator[Part]:
    count = pipeline.microbatches
    shown = list(range(pipeline.stages))
    if pipeline.stages > _MOST_STAGES:
        half = _MOST_STAGES // 2
        shown = [*shown[:half], *shown[-half:]]
    bars = []
    for stage in shown:
        each = pipeline.by_stage[stage]
        busy = count * (each.forward + each.backward)
        sizes = (count * each.forward, count * each.backward, busy / (1 - each.idle_share) - busy)
        parts = list(zip(_STAGE_PARTS, sizes, strict=True))
        layers = f"{each.layers} layer{'' if each.layers == 1 else 's'}"
        bars.append(Bar(f"stage {stage}: {layers}, {size(each.memory)}", parts, duration(busy)))
    message = f"a message between stages: {size(pipeline.message_bytes)}"
    yield Facts([_pipeline_text(pipeline), message])
    yield Drawing(stacked_bars(bars, _STAGE_PARTS, duration))


def _pipeline_text(pipeline: PipelinePlan) -> str:
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
        f" and {duration(busiest.backward)} backward a microbatch; stage {pipeline.fullest} needs"
        " most memory"
    )


def _memory(plan: Plan) -> Iterator[Part]:
    free = size(plan.headroom * plan.memory_limit)
    yield Facts(
        [
            f"{size(plan.memory_total)} of {size(plan.memory_limit)}: {FITS[plan.fits]}",
            f"a step fits if it leaves a headroom of {free} ({plan.headroom:.0%})",
        ]
    )
    held = [(what, plan.memory[purpose]) for purpose, what in PURPOSES.items()]
    yield Table(("what", "#per device"), [(what, size(n)) for what, n in held if n])
    yield _bars(plan.memory_by_point, plan.memory_limit)


def _bars(memories: dict[str, dict[str, float]], limit: float) -> Drawing:
    """Draws the memory of each label by purpose."""
    bars = [
        Bar(label, [(PURPOSES[p], n) for p, n in memory.items()], size(sum(memory.values())))
        for label, memory in memories.items()
    ]
    return Drawing(stacked_bars(bars, _MEMORY_COLORS, size, limit))


def _costs(plan: Plan) -> Table:
    rows = [
        (
            cost.phase,
            cost.kind,
            f"{cost.count:,}",
            size(cost.num_bytes) if cost.is_collective else "",
            duration(cost.seconds),
            duration(cost.hidden) if cost.hidden else "",
        )
        for cost in plan.costs
        if cost.seconds + cost.hidden >= plan.seconds / 1000
    ]
    return Table(("phase", "kind", "#count", "#sent", "#seconds", "#hidden"), rows)


def search_report(
    proposals: Sequence[Proposal], train_tokens: float = 0.0, plan_flags: str = ""
) -> Report:
    """Returns the report of a search; `plan_flags` are flags that only t2tp_plan takes."""
    front, best = pareto(proposals), proposals[0].plan
    rows, dots = [], []
    for i, each in enumerate(proposals, start=1):
        plan = each.plan
        low, high = (duration(seconds) for seconds in plan.interval)
        # The planner cannot tell these apart.
        mark = "=" * (plan.seconds <= best.interval[1]) + "*" * (each in front)
        step, memory = duration(plan.seconds), size(plan.memory_total)
        rows.append((f"{i}{mark}", step, f"{low} to {high}", f"{plan.mfu:.1%}", memory))
        words = f"{i}. {step}, {memory}: {each.flags}"
        dots.append(Dot(plan.memory_total / 2**30, plan.seconds, words, each in front))
    facts = [_title(best), f"{best.tokens:,} tokens a step"]
    if train_tokens:
        facts.append(f"The fastest takes {training_text(best, train_tokens)}.")
    facts += [f"{WARNING}{warning}" for warning in best.warnings]
    headings = ("point", "#step", "#interval", "#MFU", f"#memory of {size(best.memory_limit)}")
    parts: list[Part] = [
        Facts(facts),
        Table(headings, rows),
        Note(
            "=: within the interval of the first, so the planner cannot tell which is faster. *: no"
            " other is both faster and smaller."
        ),
        Drawing(scatter(dots, ("GiB of a device", "a step"), lambda x: f"{x:.4g}", duration)),
        _bars(
            {f"{i}": each.plan.memory for i, each in enumerate(proposals, start=1)},
            best.memory_limit,
        ),
    ]
    lines = [
        line
        for i, each in enumerate(proposals, start=1)
        for line in (f"{i}. {slower_text(best, each.plan) if i > 1 else 'the first'}", each.flags)
    ]
    if plan_flags:
        lines.append(f"t2tp_plan also needs {plan_flags}")
    flags = Section("flags", "Flags of t2tp_plan and t2tp_trainer", [Facts(lines)])
    return Report(f"Search for {best.title}", [Section("proposals", "Proposals", parts), flags])


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
