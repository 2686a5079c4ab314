"""The schedule of a pipeline: its line in a report, and its chart."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from t2tp import upstream
from t2tp.lowering.lowering import all_operations
from t2tp.mesh.layout import Layout
from t2tp.pipeline.loop import PipelineLoop
from t2tp.pipeline.messages import MessageKind
from t2tp.pipeline.schedule import Action, Schedule

# Columns of text, and ticks that a chart in HTML shows at most.
_WIDTH = 100
_MOST_TICKS = 400
_MEANINGS = {
    Action.FORWARD: "forward pass",
    Action.BACKWARD: "backward pass",
    Action.WEIGHTS: "gradients of the weights",
}
COLORS = dict(zip(_MEANINGS.values(), ("#4e79a7", "#f28e2b", "#b6992d"), strict=True))
_TICK, _ROW, _LABEL = 26, 24, 70


@dataclass(frozen=True)
class PipelineLine:
    """A pipeline before it runs.

    Attributes:
      name: name of the schedule.
      schedule: table of the schedule.
      layers: names of each stage's layers.
      message_bytes: bytes of each message of a processor to a neighbor.
    """

    name: str
    schedule: Schedule
    layers: tuple[tuple[str, ...], ...]
    message_bytes: tuple[int, ...]

    def facts(self) -> Iterator[str]:
        """Yields sentences about the pipeline."""
        schedule = self.schedule
        alive = schedule.alive()
        yield (
            f"{self.name}: {schedule.microbatches} microbatches through {schedule.stages} stages in"
            f" {schedule.ticks} ticks; stages are idle {schedule.bubble():.1%} of the time if the"
            " parts of a backward pass take as long as a forward pass"
        )
        for stage, layers in enumerate(self.layers):
            saved = f"; activations of at most {alive[stage]} at once"
            more = saved if schedule.trains else ""
            yield f"stage {stage}: {len(layers)} layers, {_ranges(layers)}{more}"
        sizes = " or ".join(f"{size:,}" for size in dict.fromkeys(self.message_bytes))
        yield f"a message to the next stage, or back: {sizes} bytes"


def pipeline_of(graph: upstream.Graph, layout: Layout) -> PipelineLine | None:
    """Finds the pipeline of a graph; None: it has none."""
    for op in all_operations(graph.operations):
        if isinstance(op, PipelineLoop):
            stages = range(op.schedule.stages)
            scopes = op.mesh.scopes_by_stage.values()
            layers = tuple(
                tuple(names[stage] for names in scopes if names[stage] is not None)
                for stage in stages
            )
            sizes = tuple(
                MessageKind.of_tensors(op.partition.exit_of(chunk).outputs, layout).num_bytes
                for chunk in range(op.schedule.chunks)
            )
            name = layout.pipeline.schedule if op.schedule.trains else "evaluation"
            return PipelineLine(name, op.schedule, layers, sizes)
    return None


def _ranges(names: tuple[str, ...]) -> str:
    if len(names) < 4:
        return ", ".join(names)
    return f"{names[0]}, {names[1]} to {names[-1]}"


def chart_as_text(schedule: Schedule) -> Iterator[str]:
    """Draws the table, with a line for each stage and a column for each tick that fits."""
    widest = max(len(str(entry)) for _, _, entry in schedule.entries()) + 1
    shown = min(schedule.ticks, (_WIDTH - 12) // widest)
    for stage in range(schedule.stages):
        cells = (schedule.table[tick][stage] for tick in range(shown))
        row = "".join(("." if cell is None else str(cell)).ljust(widest) for cell in cells)
        yield f"stage {stage:<3} {row}{'...' if shown < schedule.ticks else ''}".rstrip()


def chart_as_svg(schedule: Schedule) -> str:
    """Draws the table, with a row for each stage and a column for each tick."""
    shown = min(schedule.ticks, _MOST_TICKS)
    width, height = _LABEL + shown * _TICK, schedule.stages * _ROW
    parts = [
        f'<text x="0" y="{stage * _ROW + 16}" font-size="12">stage {stage}</text>'
        for stage in range(schedule.stages)
    ]
    for tick, stage, entry in schedule.entries():
        if tick >= shown:
            continue
        left, top = _LABEL + tick * _TICK, stage * _ROW
        title = f"{_MEANINGS[entry.action]} of microbatch {entry.microbatch}"
        if schedule.chunks > 1:
            title += f", chunk {entry.chunk}"
        strength = 1.0 - 0.45 * entry.chunk / max(schedule.chunks - 1, 1)
        parts.append(
            f'<g><title>{escape(title)}, tick {tick}</title><rect x="{left}" y="{top}"'
            f' width="{_TICK - 1}" height="{_ROW - 2}" fill="{COLORS[_MEANINGS[entry.action]]}"'
            f' fill-opacity="{strength:.2f}"/><text x="{left + _TICK / 2}" y="{top + 15}"'
            f' font-size="11" fill="#fff" text-anchor="middle">{entry.microbatch}</text></g>'
        )
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="Schedule of the pipeline">{"".join(parts)}</svg>'
    )
