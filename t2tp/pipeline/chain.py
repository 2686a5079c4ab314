"""Runs the stages once, one after the other: for programs without a schedule, such as decoding.

The rows go through the stages in groups. While one stage computes its layers for a group, the
previous stage computes its layers for the next group. The last stage sends the results of its
layers to all stages, because all stages compute the operations after the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from t2tp import upstream
from t2tp.building.mesh import Mesh
from t2tp.lowering.context import Lowering
from t2tp.lowering.fast_graph import fast_graph
from t2tp.lowering.operation import Operation
from t2tp.lowering.while_loop import reduce_what_comes_from_outside
from t2tp.mesh.layout import LayoutError
from t2tp.ops.scatter_update import NewRows, with_rows
from t2tp.pipeline.boundary import EnterStage, ExitStage

# A smaller group would take the same time, because reading the weights from memory dominates.
_MIN_TOKENS = 16
# With more groups the stages are idle for less of the time, but the matmuls have fewer rows.
_GROUPS_PER_STAGE = 2


@dataclass(frozen=True)
class RowGroups:
    """The division of rows into groups that go through the stages one after the other."""

    whole: upstream.Dimension
    count: int

    @property
    def part(self) -> upstream.Dimension:
        """The dimension of the rows of a group."""
        return upstream.Dimension(self.whole.name, self.whole.size // self.count)

    @classmethod
    def from_activations(cls, x: upstream.Tensor, mesh: Mesh) -> RowGroups:
        """Returns two groups for each stage, or fewer if groups would be unequal or too small.

        `x` is [batch, ..., d_model].
        """
        whole, layout = x.shape.dims[0], mesh.layout
        tokens = x.shape.size // x.shape.dims[-1].size
        for count in range(_GROUPS_PER_STAGE * layout.num_stages, 1, -1):
            divides = whole.size % (count * layout.batch_slices) == 0
            if divides and tokens // (count * layout.batch_slices) >= _MIN_TOKENS:
                return cls(whole, count)
        return cls(whole, 1)


class ChainResults(NamedTuple):
    """The results that a chunk of layers computes for a group of rows.

    Attributes:
      passed: tensors that go to the next stage.
      own: tensors that each stage keeps, such as its part of a decoding state.
      before: the previous value, with all rows, of each tensor in `own`; None for a new tensor.
    """

    passed: Sequence[upstream.Tensor]
    own: Sequence[upstream.Tensor]
    before: Sequence[upstream.Tensor | None]


class StageChain(Operation, upstream.WhileLoopOperation):
    """Computes a chunk of layers on each stage, one group of rows after the other.

    Input: the index of the first group. Outputs: the number of groups, `passed` (the results of the
      last stage's layers, on all stages), and `own` (tensors that each stage keeps).
    """

    def __init__(
        self, layers: Callable[[upstream.Tensor], ChainResults], mesh: Mesh, groups: RowGroups
    ) -> None:
        """Builds the graph of one stage.

        `layers` builds a chunk of layers, from `enter_stage` to `exit_stage`, for a group of rows
        with a given index (int32).
        """
        results: list[ChainResults] = []

        def body(group: upstream.Tensor) -> list[upstream.Tensor]:
            results.append(layers(group))
            return [group + 1, *results[-1].passed, *results[-1].own]

        super().__init__(
            lambda group: upstream.less(group, groups.count),
            body,
            [upstream.constant(mesh, 0, dtype=tf.int32)],
            has_accumulators=True,
            name="stages",
        )
        self._groups = groups
        self._before = results[-1].before
        for i, of_group in enumerate(self._body_outputs[1:], 1):
            dims = [groups.whole if d == groups.part else d for d in of_group.shape.dims]
            self._outputs[i] = upstream.Tensor(self, upstream.Shape(dims), of_group.dtype, index=i)
        count = len(results[-1].passed)
        self.passed: list[upstream.Tensor] = self.outputs[1 : 1 + count]
        self.own: list[upstream.Tensor] = self.outputs[1 + count :]

    @property
    def has_gradient(self) -> bool:
        """True, so that `gradient` is called and raises an error with advice."""
        return True

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor]:
        del grad_ys
        raise LayoutError(
            "The layout splits the layers into stages, whose gradients are computed by a schedule:"
            " train with t2tp.optim.train_step, or drop the rule that splits the layers."
        )

    def lower(self, lowering: Lowering) -> None:
        """Lowers the loop over ticks."""
        reduce_what_comes_from_outside(self, lowering)
        passed, own = _ChainLowering(self, lowering).run()
        lowering.set_slice(self.outputs[0], tf.constant(self._groups.count))
        for output, value in zip([*self.passed, *self.own], [*passed, *own], strict=True):
            lowering.set_slice(output, value)


class _ChainLowering:
    """The lowering of one chain."""

    def __init__(self, op: StageChain, lowering: Lowering) -> None:
        self._op, self._lowering = op, lowering
        self._mesh_impl = lowering.mesh_impl(op)
        self._collectives = self._mesh_impl.collectives
        axis = self._mesh_impl.layout.stage_axis
        assert axis is not None  # Without an axis for stages, there is no chain.
        self._axis: int = axis
        self._stages = self._mesh_impl.layout.num_stages
        self._groups = op._groups
        self._here = self._collectives.coordinate(axis)
        (self._enter,) = (op for op in op._body_ops if isinstance(op, EnterStage))
        begin = op._body_ops.index(self._enter)
        self._before, self._after = op._body_ops[:begin], op._body_ops[begin + 1 :]
        self._exits = {op.num_layers: op for op in op._body_ops if isinstance(op, ExitStage)}
        self._own = op._body_outputs[1 + len(op.passed) :]
        self._shapes = [self._mesh_impl.slice_shape(x.shape) for x in self._enter.outputs]
        self._wires = [self._collectives.wire(axis, 1) for _ in self._shapes]

    def run(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the results of the last stage's layers, and this stage's own tensors."""
        entered = [self._zeros(x) for x in self._enter.outputs]
        passed = [self._zeros(x) for x in self._op.passed]
        own = [
            self._zeros(x) if old is None else self._lowering.slice(old)
            for x, old in zip(self._op.own, self._op._before, strict=True)
        ]
        ticks = self._stages + self._groups.count - 1
        with self._collectives.repeated(ticks):
            _, _, passed, own = tf.while_loop(
                lambda tick, *_: tick < ticks,
                self._tick,
                (tf.constant(0), entered, passed, own),
                parallel_iterations=1,
            )
        last = [self._stages - 1] * self._stages
        return [self._collectives.permute(x, self._axis, last) for x in passed], own

    def _zeros(self, tensor: upstream.Tensor) -> tf.Tensor:
        return tf.zeros(self._mesh_impl.slice_shape(tensor.shape), tensor.dtype)

    def _tick(
        self,
        tick: tf.Tensor,
        entered: list[tf.Tensor],
        passed: list[tf.Tensor],
        own: list[tf.Tensor],
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        """Computes this stage's layers for a group, and sends the results to the next stage.

        `entered` are the tensors that arrived from the previous stage. `passed` (the results of the
        layers) and `own` (the stage's own tensors) are for all rows.
        """
        group = tick - self._here
        is_at_work = (group >= 0) & (group < self._groups.count)

        def work() -> list[tf.Tensor]:
            with fast_graph():
                results, changed = self._layers(group, entered, own)
                all_passed = [
                    self._with_rows(x, part, tensor, group)
                    for x, part, tensor in zip(passed, results, self._op.passed, strict=True)
                ]
            return [*results, *all_passed, *changed]

        made = tf.cond(
            is_at_work, work, lambda: [tf.identity(x) for x in (*entered, *passed, *own)]
        )
        count = len(passed)
        results, passed, own = made[:count], made[count : 2 * count], made[2 * count :]
        # In this tick, the previous stage computed the next group.
        receives = (self._here > 0) & (group + 1 >= 0) & (group + 1 < self._groups.count)
        sends = is_at_work & (self._here < self._stages - 1)
        sent, arrived = [], []
        for wire, x, shape in zip(self._wires, results, self._shapes, strict=True):
            message = wire.receive(shape, x.dtype, receives)
            sent.append(wire.send(x, shape, sends))
            latest = tf.cond(receives, lambda message=message: message, lambda x=x: x)
            arrived.append(tf.reshape(latest, shape))
        with tf.control_dependencies(sent):
            return tick + 1, arrived, list(passed), list(own)

    def _layers(
        self, group: tf.Tensor, entered: Sequence[tf.Tensor], own: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Lowers this stage's layers; returns their results, and `own` with this group's rows."""
        options = list(dict.fromkeys(self._enter.layers_by_stage))

        def first() -> list[tf.Tensor]:
            with self._lowering.isolated():
                self._bind_own(group, own)
                self._lowering.lower_operations(self._before, self._enter.inputs)
                return [self._lowering.slice(x) for x in self._enter.inputs]

        values = tf.cond(tf.equal(self._here, 0), first, lambda: [tf.identity(x) for x in entered])
        branches = [lambda n=n: self._layers_up_to(n, group, values, own) for n in options]
        if len(options) == 1:
            made = branches[0]()
        else:
            which = tf.constant([options.index(n) for n in self._enter.layers_by_stage])
            made = tf.switch_case(tf.gather(which, self._here), branches)
        return made[: len(values)], made[len(values) :]

    def _layers_up_to(
        self,
        num_layers: int,
        group: tf.Tensor,
        values: Sequence[tf.Tensor],
        own: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        lowering, op = self._lowering, self._op
        with lowering.isolated():
            self._bind_own(group, own)
            for tensor, value in zip(self._enter.outputs, values, strict=True):
                lowering.set_slice(tensor, value)
            end = self._exits[num_layers]
            inside = self._after[: self._after.index(end)]
            made = {t for inner in inside for t in inner.outputs}
            computed = [t for t in self._own if t in made]
            # The operations before the layers are the same on all stages.
            lowering.lower_operations([*self._before, *inside], [*end.inputs, *computed])
            changed = []
            for x, t, whole, old in zip(own, self._own, op.own, op._before, strict=True):
                if old is not None and lowering.slice(old) is not x:  # Updated in place.
                    changed.append(lowering.slice(old))
                elif t in made:
                    changed.append(self._with_rows(x, lowering.slice(t), whole, group))
                else:
                    changed.append(x)
            return [*(lowering.slice(t) for t in end.inputs), *changed]

    def _bind_own(self, group: tf.Tensor, own: Sequence[tf.Tensor]) -> None:
        """Sets the group's index and the values of this stage's own tensors.

        The layers may update the own tensors in place.
        """
        self._lowering.set_slice(self._op._body_inputs[0], group)
        for old, value in zip(self._op._before, own, strict=True):
            if old is not None:
                self._lowering.set_slice(old, value)
                self._lowering.updated_in_place.add(old)

    def _with_rows(
        self, x: tf.Tensor, part: tf.Tensor, tensor: upstream.Tensor, group: tf.Tensor
    ) -> tf.Tensor:
        """Returns `x`, a slice of `tensor`, with a group's rows replaced by `part`.

        If `tensor` has no rows, the result is `part`.
        """
        if self._groups.count == 1 or self._groups.whole not in tensor.shape.dims:
            return part
        rows = NewRows(group * part.shape[0] + tf.range(part.shape[0]))
        return with_rows(x, rows, part, self._mesh_impl.target)
