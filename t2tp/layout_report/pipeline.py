"""The schedule of a pipeline: its line in a report, and its chart."""

from collections.abc import Iterator
from dataclasses import dataclass

from t2tp.building.mesh import context_of
from t2tp.mesh.layout import Layout
from t2tp.pipeline.loop import PipelineLoop
from t2tp.pipeline.schedule import Schedule
from t2tp.step.pipeline import ChunkBytes

LETTERS = "F: forward pass, B: backward pass, W: gradients of weights, by microbatch"


@dataclass(frozen=True)
class PipelineLine:
    """A pipeline's line in a report.

    Attributes:
      layers: names of each stage's layers.
      message_bytes: bytes of each message of a processor to a neighbor.
    """

    name: str
    schedule: Schedule
    layers: tuple[tuple[str, ...], ...]
    message_bytes: tuple[int, ...]

    @classmethod
    def of_loop(cls, loop: PipelineLoop, layout: Layout) -> "PipelineLine":
        """Describes the loop of a pipeline."""
        scopes = context_of(loop.mesh).stage_scopes.values()
        layers = tuple(
            tuple(name for names in scopes if (name := names[stage]) is not None)
            for stage in range(loop.schedule.stages)
        )
        name = layout.pipeline.schedule if loop.schedule.trains else "evaluation"
        return cls(name, loop.schedule, layers, ChunkBytes.of_loop(loop, layout).messages)

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


def _ranges(names: tuple[str, ...]) -> str:
    if len(names) < 4:
        return ", ".join(names)
    return f"{names[0]}, {names[1]} to {names[-1]}"


def chart(schedule: Schedule, columns: int) -> Iterator[str]:
    """Draws a schedule, with a line per stage of up to `columns` letters, and a column per tick."""
    widest = max(len(str(entry)) for _, _, entry in schedule.entries()) + 1
    shown = min(schedule.ticks, (columns - 12) // widest)
    for stage in range(schedule.stages):
        cells = (schedule.table[tick][stage] for tick in range(shown))
        row = "".join(("." if cell is None else str(cell)).ljust(widest) for cell in cells)
        yield f"stage {stage:<3} {row}{'...' if shown < schedule.ticks else ''}".rstrip()
