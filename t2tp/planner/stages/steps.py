"""Lowers pipeline stages, from programs of two stages with few layers.

The work of a stage on a microbatch depends neither on the number of stages nor on the number of
microbatches. So the lowered program has two stages and two microbatches, and `timing` simulates the
schedule of the real pipeline.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from t2tp import upstream
from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout, LayoutError
from t2tp.mesh.stages import LAYERS
from t2tp.pipeline.schedule import Action
from t2tp.pipeline.schedules import lowered_schedule
from t2tp.planner.cluster_file import SoftwareStack
from t2tp.planner.depth import depths, lower_by_layers
from t2tp.planner.stages.timing import Table
from t2tp.program.abstract_program import AbstractProgram
from t2tp.program.program import Feature
from t2tp.step.lifetimes import Liveness
from t2tp.step.lowered import ChunkBytes, LoweredStep, pipeline_loop
from t2tp.step.order import FIRST, LAST, MIDDLE, of_stage, program_order
from t2tp.step.work import UPDATE, Traffic

# Stages and microbatches of the lowered program.
_STAGES, _MICROBATCHES = 2, 2


@dataclass
class StageSteps:
    """The lowered steps of the three kinds of stage, with a given number of layers.

    Attributes:
      by_place: the steps of the `first`, a `middle` and the `last` stage.
      kept: bytes of activations that a microbatch's forward pass saves in the layers, by chunk.
      results: bytes of the activations that a chunk's layers return.
      messages: bytes of these activations that a processor sends to the next stage.
    """

    by_place: dict[str, LoweredStep]
    kept: tuple[float, ...]
    results: tuple[int, ...]
    messages: tuple[int, ...]

    @classmethod
    def from_program(
        cls, program: AbstractProgram, stages: int, *, software: SoftwareStack
    ) -> StageSteps:
        """Lowers a training program of two stages, for a real pipeline of `stages` stages.

        `software` is as in `LoweredStep.from_program`.
        """
        layout = program.layout
        log = program.collective_log()
        graph, outputs = program.graph()
        loop = pipeline_loop(graph.operations)
        assert loop is not None, "the program has stages"
        # The loop reduces one idle share per stage. In the real pipeline, which has more stages,
        # this reduction has `more` bytes in addition.
        shares = loop.idle_share.name
        more = (stages - layout.num_stages) * loop.idle_share.dtype.size
        log = [
            dataclasses.replace(each, bytes=each.bytes + more) if shares in each.sums else each
            for each in log
        ]
        needed = list(outputs.values())
        placed = program_order(graph.operations, needed, log, repeats_all=software.repeats_all)
        by_place = {}
        # If each stage has all layers, first + last - middle is the whole step: the beginning, the
        # layers once, and the end.
        for place in (FIRST, MIDDLE, LAST):
            own = of_stage(placed, place)
            unused = []
            # All of t2tp's stages have the embeddings (`SoftwareStack.weights_where_used`).
            if software.weights_where_used:
                reads = (each.operation.inputs for each in own if each.phase != UPDATE)
                read = {x.operation for inputs in reads for x in inputs}
                unused = [v for v in graph.trainable_variables if v not in read]
            own = [each for each in own if each.operation not in unused]
            lifetimes = Liveness(own, needed, layout, software)
            by_place[place] = LoweredStep.from_lifetimes(lifetimes, graph, needed, unused)
        # Gradients of weights are complete after the last entry of a microbatch.
        last = Action.WEIGHTS if loop.schedule.splits_backward else Action.BACKWARD
        for step in by_place.values():
            step.traffic = _in_entries(step.traffic, f"{last.value}0")
        sizes = ChunkBytes.of_loop(loop, layout)
        # The kernels of another software stack may save fewer activations than t2tp's own kernels.
        share = by_place[MIDDLE].layer_bytes["kept"] / max(1, sum(sizes.kept))
        kept = tuple(size * share for size in sizes.kept)
        return cls(by_place, kept, sizes.results, sizes.messages)

    def extended(self, longer: StageSteps, shorter: StageSteps, times: int) -> StageSteps:
        """Returns the steps with more layers: adds the difference of two steps, `times` times."""
        by_place = {
            place: step.extended(longer.by_place[place], shorter.by_place[place], times)
            for place, step in self.by_place.items()
        }
        kept = zip(self.kept, longer.kept, shorter.kept, strict=True)
        more = tuple(own + times * (long - short) for own, long, short in kept)
        return dataclasses.replace(self, by_place=by_place, kept=more)


def _in_entries(traffic: Mapping[Traffic, float], part: str) -> dict[Traffic, float]:
    """Assigns the reductions of each iteration of the loop to `part`, an entry of the schedule."""
    return {
        dataclasses.replace(t, part=part)
        if t.times > 1 and not t.part and t.kind != "permute"
        else t: n
        for t, n in traffic.items()
    }


class StageLowering:
    """Lowers the stages of a model.

    Attributes:
      layout: the whole mesh's layout.
      stacks: number of layers of each stack, by the hparam that counts them.
      table: the schedule of all microbatches on all stages.
      microbatches: microbatches of the lowered program.
    """

    def __init__(
        self,
        build: Callable[[HParams, Callable[[Feature], Feature]], AbstractProgram],
        hparams: HParams,
        software: SoftwareStack,
        lowered_before: dict[Hashable, Any],
    ) -> None:
        """Prepares the lowering.

        `build` returns the program of hparams; its second argument is a function that changes each
        feature. `software` is as in `LoweredStep.from_program`, and `lowered_before` as in
        `Request`.

        Raises:
          LayoutError: the model has no layers to divide, or there is no such schedule.
        """
        self._build, self._software, self._lowered_before = build, software, lowered_before
        self.layout = layout = Layout.from_hparams(hparams)
        self.stacks = depths(hparams)
        if not self.stacks:
            raise LayoutError(
                f"The layout splits {LAYERS!r}, and this model has no stack of layers to split"
                " (t2tp.layers.stack.Stack): drop the rule."
            )
        # An encoder's output passes all stages before the decoder begins, so stacks share no chunk.
        schedule, chunks = layout.pipeline.schedule, len(self.stacks) * layout.pipeline.chunks
        self.table = Table(schedule, layout.num_stages, hparams.microbatches, chunks)
        self.microbatches = min(_MICROBATCHES, hparams.microbatches)
        # The number of stages is the product of these axes: one gets `_STAGES`, the others 1.
        first, *others = layout.axes_of(LAYERS)
        sizes = {axis.name: axis.size for axis in layout.mesh_shape.dims}
        sizes |= {first.name: _STAGES, **dict.fromkeys((axis.name for axis in others), 1)}
        values = {
            "mesh_shape": ";".join(f"{name}:{size}" for name, size in sizes.items()),
            "microbatches": self.microbatches,
            "pipeline_schedule": lowered_schedule(self.table.splits_backward),
            # The layers of each stage and chunk are given to `of`, so this program divides equally.
            "pipeline_chunks": 1,
            "pipeline_layers": "",
        }
        self._hparams = hparams.with_values(values)
        self.of = functools.cache(self._of)

    def _of(self, *layers: int) -> StageSteps:
        """Returns the steps of stages with the given number of layers of each stack."""
        counts = dict(zip(self.stacks, layers, strict=True))
        return lower_by_layers(self._lower, self._hparams.with_values(counts))

    def _lower(self, few: HParams) -> StageSteps:
        hparams = few.with_values({name: _STAGES * few.get(name) for name in self.stacks})
        table = self.table
        # The lowered hparams lack the real number of microbatches, which sets the rows of the
        # program, and of stages, which sets the bytes of idle shares.
        key = repr(hparams), table.microbatches, table.stages, self._software
        if key not in self._lowered_before:
            steps = StageSteps.from_program(
                self._build(hparams, self._fewer_rows), table.stages, software=self._software
            )
            for step in steps.by_place.values():
                for peak in step.memory:
                    # The lowered program has the rows of only some microbatches.
                    if "features" in peak.by_purpose:
                        peak.by_purpose["features"] *= table.microbatches / self.microbatches
            self._lowered_before[key] = steps
        return self._lowered_before[key]

    def _fewer_rows(self, feature: Feature) -> Feature:
        """Returns a feature with only the rows of the lowered microbatches."""
        dims, microbatches = [], self.table.microbatches
        for dim in feature.shape.dims:
            size = dim.size
            # Microbatches have whole sequences or images.
            if dim.name == "batch":
                if size % microbatches:
                    raise LayoutError(
                        f"microbatches={microbatches} does not divide a batch of {size}"
                    )
                size = size // microbatches * self.microbatches
            dims.append(upstream.Dimension(dim.name, size))
        return Feature(upstream.Shape(dims), feature.dtype)
