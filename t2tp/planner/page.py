"""A plan, or the proposals of a search, as one self-contained HTML page without JavaScript."""

import importlib.resources
from collections.abc import Iterator, Sequence
from html import escape

from t2tp.layout_report.html_page import html_page, legend, table
from t2tp.planner.charts import Bar, Dot, scatter, stacked_bars
from t2tp.planner.plan import PipelinePlan, Plan
from t2tp.planner.search import Proposal, pareto
from t2tp.planner.text import FITS, duration, pipeline_text, size
from t2tp.step.work import COMPUTE_BOUND, PHASES, PURPOSES

_COLORS = (
    *("#2f6fde", "#7b61d1", "#33a29b", "#e39a2d", "#e06c5c"),
    *("#5aa7e6", "#8f9aa8", "#b9d36c", "#c9ced6"),
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
# Max number of stages with a bar each.
_MOST_STAGES = 16


def page(plan: Plan, proposals: Sequence[Proposal] = ()) -> str:
    """Renders the page."""
    sections = {"memory": ("Memory of a device", _memory(plan, proposals))}
    sections["step"] = ("The step", _timeline(plan))
    if plan.pipeline is not None:
        sections["stages"] = ("Pipeline stages", _stages(plan.pipeline))
    if proposals:
        sections["front"] = ("Time against memory", _front(proposals))
    sections["costs"] = ("Seconds by kind", _costs(plan))
    title = f"{plan.title} on {plan.devices:,} devices of {plan.cluster}"
    style = importlib.resources.files(__package__).joinpath("plan.css").read_text("utf-8")
    return html_page(title, sections, style=style, intro="".join(_facts(plan)))


def _facts(plan: Plan) -> Iterator[str]:
    mesh = plan.mesh_shape or "one device"
    yield f"<p>mesh <code>{escape(mesh)}</code>, layout <code>{escape(plan.layout)}</code>,"
    yield f" {plan.parameters:,} parameters, {plan.tokens:,} tokens a step</p>"
    low, high = (duration(seconds) for seconds in plan.interval)
    each = plan.tokens_per_second / plan.devices
    facts = {
        "a step": (duration(plan.seconds), f"from {low} to {high}"),
        "tokens/s": (f"{plan.tokens_per_second:,.0f}", f"{each:,.1f} per device"),
        "MFU": (f"{plan.mfu:.1%}", f"{plan.causal_mfu:.1%} without masked scores"),
        "of a device": (
            size(plan.memory_total),
            f"of {size(plan.memory_limit)}: {FITS[plan.fits]}",
        ),
    }
    cells = (
        f'<div><b>{escape(value)}</b>{escape(name)}<br><span class="faint">{escape(more)}</span>'
        "</div>"
        for name, (value, more) in facts.items()
    )
    yield f'<div class="facts">{"".join(cells)}</div>'
    part, share = plan.bottleneck
    yield f"<p>Bound by {escape(part)}, {share:.0%} of the step.</p>"


def _memory(plan: Plan, proposals: Sequence[Proposal]) -> Iterator[str]:
    points = plan.memory_by_point
    labels = _labels(proposals) if proposals else list(points)
    memories = [each.plan.memory for each in proposals] if proposals else list(points.values())
    bars = [
        Bar(label, [(PURPOSES[p], n) for p, n in memory.items()], size(sum(memory.values())))
        for label, memory in zip(labels, memories, strict=True)
    ]
    used = {name for bar in bars for name, part in bar.parts if part}
    yield legend({name: color for name, color in _MEMORY_COLORS.items() if name in used})
    yield stacked_bars(bars, _MEMORY_COLORS, size, plan.memory_limit)
    headroom = size(plan.memory_limit - plan.usable_memory)
    yield f'<p class="faint">Dashed: the memory of a device, {size(plan.memory_limit)}, with a'
    yield f" headroom of {headroom}.</p>"


def _labels(proposals: Sequence[Proposal]) -> list[str]:
    """Returns number, mesh, and the choices that differ between proposals."""
    choices = [each.candidate.hparams() for each in proposals]
    names = [
        n for n in dict.fromkeys(n for c in choices for n in c) if n not in ("mesh_shape", "layout")
    ]
    differ = [name for name in names if len({str(c.get(name)) for c in choices}) > 1]
    return [
        f"{i}. {c['mesh_shape'] or 'one device'}"
        + "".join(f", {name}={c[name]}" for name in differ if name in c)
        for i, c in enumerate(choices, start=1)
    ]


def _timeline(plan: Plan) -> Iterator[str]:
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
    yield legend(_PARTS)
    yield stacked_bars(bars, _PARTS, duration)
    yield (
        f'<p class="faint">{plan.hidden_share:.0%} of the communication overlaps with'
        " computation, and is not drawn.</p>"
    )


def _stages(pipeline: PipelinePlan) -> Iterator[str]:
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
    yield f"<p>{escape(pipeline_text(pipeline))}. Stage {pipeline.fullest} needs most memory. A"
    yield f" message has {size(pipeline.message_bytes)}.</p>"
    yield legend(_STAGE_PARTS)
    yield stacked_bars(bars, _STAGE_PARTS, duration)
    if len(bars) < pipeline.stages:
        yield f'<p class="faint">The first and the last {_MOST_STAGES // 2} stages.</p>'


def _front(proposals: Sequence[Proposal]) -> Iterator[str]:
    front = pareto(proposals)
    dots = [
        Dot(
            each.plan.memory_total / 2**30,
            each.plan.seconds,
            f"{i}. {duration(each.plan.seconds)}, {size(each.plan.memory_total)}: {each.flags}",
            each in front,
        )
        for i, each in enumerate(proposals, start=1)
    ]
    yield scatter(dots, ("GiB of a device", "a step"), lambda x: f"{x:.4g}", duration)
    yield '<p class="faint">Blue: no other is both faster and smaller.</p>'
    yield table(
        ("#", "#step", "#memory", "flags of t2tp_plan and t2tp_trainer"),
        (
            (
                f"{i}.",
                duration(each.plan.seconds),
                size(each.plan.memory_total),
                f"<code>{escape(each.flags)}</code>",
            )
            for i, each in enumerate(proposals, start=1)
        ),
    )


def _costs(plan: Plan) -> Iterator[str]:
    yield table(
        ("phase", "kind", "#count", "#sent", "#seconds", "#hidden"),
        (
            (
                cost.phase,
                escape(cost.kind),
                f"{cost.count:,}",
                size(cost.num_bytes) if cost.is_collective else "",
                duration(cost.seconds),
                duration(cost.hidden) if cost.hidden else "",
            )
            for cost in plan.costs
            if cost.seconds + cost.hidden >= plan.seconds / 1000
        ),
    )
