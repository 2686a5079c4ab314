"""The loop over microbatches in a pipeline.

A pipeline divides the layers into stages. In each *tick* of the schedule, a stage runs at most one
*action* of one microbatch: its forward pass, its backward pass, or the gradients of the weights. A
microbatch may go through the stages several times, each time through another *chunk* of a stage's
layers (with the schedule `interleaved`, or with an encoder and a decoder).

`partition` cuts the graph of one microbatch into pieces, such as the layers of one chunk.
`branches` lowers one branch for each action, chunk and number of layers (a chunk may have different
numbers of layers on different stages). The size of the lowered graph therefore does not depend on
the number of microbatches. `ticks` runs the schedule.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from t2tp import upstream
from t2tp.building.mesh import Mesh
from t2tp.lowering.context import Lowering
from t2tp.lowering.while_loop import reduce_what_comes_from_outside
from t2tp.mesh.layout import LayoutError
from t2tp.ops.microbatch_sums import MicrobatchSums
from t2tp.pipeline.boundary import EnterStage
from t2tp.pipeline.branches import Branches
from t2tp.pipeline.partition import Partition
from t2tp.pipeline.schedule import Schedule
from t2tp.pipeline.schedules import forward_schedule, make_schedule
from t2tp.pipeline.ticks import Ticks


class PipelineLoop(MicrobatchSums):
    """Sums the results of a function over microbatches, in a pipeline of stages.

    Outputs: the outputs of `MicrobatchSums`, and `idle_share`. With `exact_sums`, a sum to which
      several stages add has one output for each of these stages.

    Attributes:
      is_per_stage: for each output sum, whether each stage has its own sum. Otherwise all stages
        contribute to one sum.
      idle_share: the measured fraction of the time in which each stage was idle: float32
        [stages_of_pipeline]. NaN on GPUs.
    """

    def __init__(
        self,
        sums_of: Callable[[upstream.Tensor], Any],
        count: int,
        microbatch_dim: upstream.Dimension,
        mesh: Mesh,
        is_per_stage: Callable[[Any], Any],
        following: MicrobatchSums | None = None,
    ) -> None:
        """Builds the graph of a microbatch and cuts it into stages.

        `sums_of` is called with the index of a microbatch (int32), and returns the values that the
        microbatch adds to the sums. `is_per_stage` converts these values to booleans of the same
        structure: true if each stage has its own sum, such as the gradients of the stage's layers.
        `following` is an earlier loop, whose tensors `sums_of` may read; see `MicrobatchSums`.

        Raises:
          LayoutError: the graph cannot be cut into stages, the schedule does not exist, or
            `exact_sums` does not support the schedule.
        """
        super().__init__(sums_of, count, microbatch_dim, mesh, "pipeline", following)
        stages = upstream.Shape([upstream.Dimension("stages_of_pipeline", mesh.layout.num_stages)])
        self.idle_share = upstream.Tensor(self, stages, tf.float32, index=len(self._outputs))
        self._outputs.append(self.idle_share)
        self.is_per_stage: list[bool] = tf.nest.flatten(is_per_stage(self.addends))
        layout = mesh.layout
        enters = [op for op in self._body_ops if isinstance(op, EnterStage)]
        chunks, trains = len(enters), any(op.backward is not None for op in enters)
        self.schedule: Schedule = (
            make_schedule(layout.pipeline.schedule, layout.num_stages, count, chunks)
            if trains
            else forward_schedule(layout.num_stages, count, chunks)
        )
        if layout.exact_sums:
            self._check_order()
        self.partition = Partition(
            self._body_ops, self._body_outputs[1:], splits_backward=self.schedule.splits_backward
        )
        self._addends = {x: self._addends_of(i) for i, x in enumerate(self._outputs[1:-1])}

    def _addends_of(self, number: int) -> list[tuple[tuple[int, int], upstream.Tensor]]:
        """Returns the outputs of a sum, each with the chunk and the stage that add to it.

        With `exact_sums`, there is an output for each chunk and stage that add to the sum. Without
        it, and for a sum that each stage has for itself (`is_per_stage`), there is one output, with
        (0, 0) in place of the chunk and the stage.
        """
        output = self._outputs[1 + number]
        if self.is_per_stage[number] or not self.mesh.layout.exact_sums:
            return [((0, 0), output)]
        places = self.partition.places(number)
        if not places or (places[1:] and not output.shape.dims):
            raise LayoutError(
                f"exact_sums cannot add up {self._body_outputs[1 + number].name!r} over stages in a"
                " fixed order: drop the rule that splits the layers, or set exact_sums=0."
            )
        begin = len(self._outputs)
        for index in range(begin, begin + len(places) - 1):
            self._outputs.append(upstream.Tensor(self, output.shape, output.dtype, index=index))
        return [*zip(places, [output, *self._outputs[begin:]], strict=True)]

    def in_order(self, sums: Sequence[upstream.Tensor]) -> list[upstream.Tensor]:
        """Returns the addends of a weight's gradient in the order in which one device adds them.

        A single device adds them in the order of its backward pass. `sums` has a sum over
        microbatches for each operation that uses the weight, in the order of a stage's backward
        pass. If several stages run such an operation, its sum has one addend for each of these
        stages.
        """
        addends = [addend for x in sums for addend in self._addends[x]]
        # Addends of the same chunk and stage keep their order.
        return [x for _, x in sorted(addends, key=lambda addend: addend[0], reverse=True)]

    def _check_order(self) -> None:
        """Checks that each stage runs the microbatches in their order, as `exact_sums` requires."""
        if self.schedule.splits_backward:
            raise LayoutError(
                "exact_sums needs the gradients of weights in the backward pass, and"
                f" pipeline_schedule={self.mesh.layout.pipeline.schedule} computes them separately:"
                " use 1f1b, or set exact_sums=0."
            )
        counts: Counter[tuple] = Counter()
        for _, stage, entry in self.schedule.entries():
            key = stage, entry.action, entry.chunk
            if entry.microbatch != counts[key]:
                raise LayoutError(
                    "exact_sums adds up microbatches in their order, and in this"
                    f" pipeline_schedule stage {stage} has {entry} before microbatch"
                    f" {counts[key]}: use another schedule, or set exact_sums=0."
                )
            counts[key] += 1

    def lower(self, lowering: Lowering) -> None:
        reduce_what_comes_from_outside(self, lowering)
        mesh_impl = lowering.mesh_impl(self)
        axis = mesh_impl.layout.stage_axis
        assert axis is not None  # Without an axis for stages, there is no pipeline.
        stage = mesh_impl.collectives.coordinate(axis)
        branches = Branches(self, self.partition, self.schedule, lowering, stage)
        sums, idle_share = Ticks(branches, axis, self.count).run()
        lowering.set_slice(self.outputs[0], tf.constant(self.count))
        stages = mesh_impl.layout.axes.separate([axis])
        for i, addends in enumerate(self._addends.values()):
            value, sum_axes = sums[i], branches.axes.get(i, [])
            if not self.is_per_stage[i]:
                sum_axes = sorted({*sum_axes, *stages})
            for (_, place), output in addends:
                own = value
                if branches.tree_size and not self.is_per_stage[i]:
                    # The other stages add -0, which changes no bit. (+0 would turn -0 into +0.)
                    own = tf.where(tf.equal(stage, place), value, -tf.zeros_like(value))
                lowering.set_sum_over_axes(output, own, sum_axes)
        lowering.set_sum_over_axes(self.idle_share, idle_share, stages)
