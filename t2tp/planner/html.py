"""A plan, or what a search has found, as one self-contained HTML file without JavaScript."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from t2tp.layout_report.html_style import STYLE
from t2tp.planner.charts import Bar, Dot, legend, points, stacked_bars
from t2tp.planner.plan import PipelinePlan, Plan
from t2tp.planner.search import Found, pareto
from t2tp.planner.text import duration, size
from t2tp.planner.work import COMPUTE_BOUND, PHASES, PURPOSES

_MORE_STYLE = """
svg.chart { width: 100%; height: auto; }
svg.chart rect { stroke: var(--paper); stroke-width: 1; }
svg.chart text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .limit { stroke: #d3412f; stroke-width: 2; stroke-dasharray: 5 3; }
svg .grid { stroke: var(--line); }
svg .front { stroke: #2f6fde; stroke-width: 2; fill: none; }
svg .ideal { stroke: var(--faint); stroke-dasharray: 4 4; fill: none; }
svg circle { stroke: var(--paper); stroke-width: 1.5; }
svg .chosen { fill: #2f6fde; } svg .other { fill: var(--hatch); }
.legend span { margin-right: 1.1rem; white-space: nowrap; font-size: .88rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem;
  border-radius: 2px; vertical-align: -1px; }
.facts { display: grid; grid-template-columns: repeat(4, 1fr); gap: .6rem; margin: .8rem 0; }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .5rem .7rem; }
.facts b { display: block; font-size: 1.25rem; }
section { break-inside: avoid; }
@media print { body { max-width: none; padding: 0; print-color-adjust: exact;
  -webkit-print-color-adjust: exact; } nav { display: none; } h2 { margin-top: 1rem; } }
"""

_MEMORY_COLORS = dict(
    zip(
        PURPOSES.values(),
        (
            "#2f6fde",
            "#7b61d1",
            "#33a29b",
            "#e39a2d",
            "#e06c5c",
            "#5aa7e6",
            "#8f9aa8",
            "#b9d36c",
            "#c9ced6",
        ),
        strict=True,
    )
)
_PARTS = {
    "matmuls and attention": "#2f6fde",
    "memory-bound operations": "#8fb6f2",
    "communication that is not hidden": "#e06c5c",
    "pipeline bubble": "#c9ced6",
}

_STAGE_PARTS = {
    "forward passes": "#4e79a7",
    "backward passes": "#f28e2b",
    "waiting and messages": "#c9ced6",
}
# Of which the page has a bar each.
_MOST_STAGES = 16


def page(plan: Plan, found: Sequence[Found] = (), scaling: Sequence[Plan] = ()) -> str:
    """Renders the page.

    Args:
      plan: what it is of.
      found: the layouts of a search, if there was one.
      scaling: plans for other numbers of devices, with the same rows on each.
    """
    sections = {"memory": ("Memory of a device", _memory(plan, found))}
    sections["step"] = ("The step", _timeline(plan))
    if plan.pipeline is not None:
        sections["stages"] = ("The stages of the pipeline", _stages(plan.pipeline))
    if found:
        sections["front"] = ("Time against memory", _front(found))
    if len(scaling) > 1:
        sections["scaling"] = ("More devices", _scaling(scaling))
    sections["costs"] = ("Seconds by kind", _costs(plan))
    links = "".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in sections.items())
    body = "".join(
        f'<section id="{name}"><h2>{title}</h2>{"".join(parts)}</section>'
        for name, (title, parts) in sections.items()
    )
    title = escape(f"{plan.title} on {plan.devices:,} devices of {plan.cluster}")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}{_MORE_STYLE}</style></head><body>"
        f"<h1>{title}</h1><nav>{links}</nav>{''.join(_facts(plan))}{body}</body></html>\n"
    )


def _facts(plan: Plan) -> Iterator[str]:
    mesh = plan.mesh_shape or "one device"
    yield f"<p>mesh <code>{escape(mesh)}</code>, layout <code>{escape(plan.layout)}</code>,"
    yield f" {plan.parameters:,} parameters, {plan.tokens:,} tokens a step</p>"
    low, high = (duration(seconds) for seconds in plan.interval)
    each = plan.tokens_per_second / plan.devices
    facts = {
        "a step": (duration(plan.seconds), f"from {low} to {high}"),
        "tokens/s": (f"{plan.tokens_per_second:,.0f}", f"{each:,.1f} of each device"),
        "MFU": (f"{plan.mfu:.1%}", f"{plan.causal_mfu:.1%} with the causal half of attention"),
        "of a device": (
            size(plan.memory_total),
            f"of {size(plan.memory_limit)}: {_FITS[plan.fits]}",
        ),
    }
    cells = (
        f'<div><b>{escape(value)}</b>{escape(name)}<br><span class="faint">{escape(more)}</span>'
        "</div>"
        for name, (value, more) in facts.items()
    )
    yield f'<div class="facts">{"".join(cells)}</div>'
    yield f"<p>Bound by {escape(plan.bound)}.</p>"


_FITS = {"yes": "it fits", "no": "it does not fit", "borderline": "it may fit or not"}


def _memory(plan: Plan, found: Sequence[Found]) -> Iterator[str]:
    if found:
        bars = [_memory_bar(_short(each), each.plan.memory) for each in found]
    else:
        bars = [_memory_bar(point, memory) for point, memory in plan.memory_by_point.items()]
    used = {name for bar in bars for name, part in bar.parts if part}
    yield legend({name: color for name, color in _MEMORY_COLORS.items() if name in used})
    limit = f"{size(plan.memory_limit)}: the device's memory"
    yield stacked_bars(bars, _MEMORY_COLORS, size, plan.memory_limit, limit)


def _memory_bar(label: str, memory: dict[str, float]) -> Bar:
    parts = [(PURPOSES[purpose], part) for purpose, part in memory.items()]
    return Bar(label, parts, size(sum(memory.values())))


def _short(found: Found) -> str:
    """Returns mesh, microbatches, ZeRO stage and recomputation in a few words."""
    chosen = found.candidate
    words = [found.plan.mesh_shape or "one device", f"{chosen.microbatches} mb"]
    words += [f"zero {chosen.zero_stage}"] if chosen.zero_stage else []
    words += ["recompute"] if chosen.recompute != "none" else []
    return ", ".join(words)


def _timeline(plan: Plan) -> Iterator[str]:
    phases: dict[str, dict[str, float]] = {phase: dict.fromkeys(_PARTS, 0.0) for phase in PHASES}
    for cost in plan.costs:
        phases[cost.phase][_part(cost.kind, cost.is_collective)] += cost.seconds
    in_order = [part for parts in phases.values() for part in parts.items()]
    in_order.append(("pipeline bubble", plan.bubble * plan.seconds))
    bars = [Bar("the step, from left to right", in_order, duration(plan.seconds))]
    bars += [
        Bar(name, list(parts.items()), duration(sum(parts.values())))
        for name, parts in phases.items()
    ]
    yield legend(_PARTS)
    yield stacked_bars(bars, _PARTS, duration)
    yield (
        f'<p class="faint">{plan.hidden_share:.0%} of the communication is hidden behind'
        " computation, and not drawn.</p>"
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
        parts = [
            ("forward passes", count * each.forward),
            ("backward passes", count * each.backward),
            ("waiting and messages", busy / (1 - each.idle_share) - busy),
        ]
        layers = f"{each.layers} layer{'' if each.layers == 1 else 's'}"
        bars.append(Bar(f"stage {stage}: {layers}, {size(each.memory)}", parts, duration(busy)))
    yield (
        f"<p>Schedule <code>{escape(pipeline.schedule)}</code>, {count:,} microbatches: stages are"
        f" idle {pipeline.idle_share:.1%} of the schedule. The others wait for stage"
        f" {pipeline.busiest}; stage {pipeline.fullest} needs most memory. A message has"
        f" {size(pipeline.message_bytes)}.</p>"
    )
    yield legend(_STAGE_PARTS)
    yield stacked_bars(bars, _STAGE_PARTS, duration)
    if len(bars) < pipeline.stages:
        yield f'<p class="faint">The first and the last {_MOST_STAGES // 2} stages.</p>'


def _part(kind: str, is_collective: bool) -> str:
    if is_collective:
        return "communication that is not hidden"
    return "matmuls and attention" if kind in COMPUTE_BOUND else "memory-bound operations"


def _front(found: Sequence[Found]) -> Iterator[str]:
    front = pareto(found)
    dots = [
        Dot(
            each.plan.memory_total,
            each.plan.seconds,
            f"{duration(each.plan.seconds)}, {size(each.plan.memory_total)}: "
            f"{each.candidate.flags()}",
            each in front,
        )
        for each in found
    ]
    yield points(dots, size, duration, ("memory of a device", "a step"), x_unit=1 << 30)
    yield '<p class="faint">Blue: no other is both faster and smaller. Point at one for its flags.'
    yield "</p><table><tr><th>step</th><th>memory</th><th>flags</th></tr>"
    for each in front:
        yield (
            f'<tr><td class="number">{duration(each.plan.seconds)}</td>'
            f'<td class="number">{size(each.plan.memory_total)}</td>'
            f"<td><code>{escape(each.candidate.flags())}</code></td></tr>"
        )
    yield "</table>"


def _scaling(plans: Sequence[Plan]) -> Iterator[str]:
    dots = [
        Dot(
            plan.devices,
            plan.tokens_per_second,
            f"{plan.devices:,} devices: {plan.tokens_per_second:,.0f} tokens/s, MFU {plan.mfu:.1%}",
        )
        for plan in plans
    ]
    first, last = plans[0], plans[-1]
    each = first.tokens_per_second / first.devices
    ideal = [(0.0, 0.0), (float(last.devices), each * last.devices)]
    words = ("devices", "tokens/s")
    yield points(dots, lambda x: f"{x:,.0f}", lambda y: f"{y:,.0f}", words, ideal)
    yield (
        '<p class="faint">The same rows on each device; dashed: as many times the tokens/s as'
        f" devices, of {first.devices:,}.</p>"
    )


def _costs(plan: Plan) -> Iterator[str]:
    yield '<table><tr><th>phase</th><th>kind</th><th class="number">count</th>'
    yield '<th class="number">seconds</th><th class="number">hidden</th></tr>'
    for cost in plan.costs:
        if cost.seconds + cost.hidden < plan.seconds / 1000:
            continue
        hidden = duration(cost.hidden) if cost.hidden else ""
        yield (
            f"<tr><td>{cost.phase}</td><td>{escape(cost.kind)}</td>"
            f'<td class="number">{cost.count:,}</td>'
            f'<td class="number">{duration(cost.seconds)}</td><td class="number">{hidden}</td></tr>'
        )
    yield "</table>"
