"""From an mtf graph to TensorFlow operations: which operations are lowered, and how."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.effects import (
    lower_depend,
    lower_only_if,
    lower_print,
    lower_scalar_summary,
)
from t2tp.mesh.einsum import lower_einsum, lower_one_hot
from t2tp.mesh.gradients import lower_generic_gradient, lower_pool_gradient
from t2tp.mesh.linear import lower_add, lower_linear, puts_off
from t2tp.mesh.loops import lower_while_loop
from t2tp.mesh.microbatch import Microbatch
from t2tp.mesh.random_operations import lower_random
from t2tp.mesh.reductions import Reductions, surely_needed
from t2tp.mesh.reshape import lower_reshape
from t2tp.mesh.spmd import LaidOutTensor, SpmdMeshImpl
from t2tp.mesh.sums import reduce_sum, sum_in_stages
from t2tp.mesh.transposed_convolution import lower_transposed_convolution

T = TypeVar("T")

# Elements. Each device compiles for itself, some 0.1 s of a core's time.
_WORTH_COMPILING = 1 << 18

# Operations that do something besides computing their outputs.
_EFFECTS = (mtf.Assign, mtf.PrintOperation)


def all_operations(operations: Iterable[mtf.Operation]) -> Iterator[mtf.Operation]:
    """The operations, and those inside of loops."""
    for op in operations:
        yield op
        if isinstance(op, mtf.WhileLoopOperation):
            yield from all_operations((*op._cond_ops, *op._body_ops))


def live_operations(
    operations: Sequence[mtf.Operation], needed: Iterable[mtf.Tensor]
) -> list[mtf.Operation]:
    """The operations that `needed` tensors or effects depend on, in the order given.

    Building gradients leaves many operations that nothing uses; TensorFlow would prune them, but
    never a collective.
    """
    wanted = {tensor.operation for tensor in needed}
    live = []
    for op in reversed(operations):
        if op in wanted or has_effect(op):
            live.append(op)
            wanted.update(_producers(op))
    return live[::-1]


def has_effect(op: mtf.Operation) -> bool:
    """Whether an operation, or one inside of it, assigns or prints."""
    return any(isinstance(inner, _EFFECTS) for inner in all_operations([op]))


def _producers(op: mtf.Operation) -> set[mtf.Operation]:
    producers = {tensor.operation for tensor in op.inputs}
    for tensor in (_draw_after(op), _only_if(op)):
        if tensor is not None:
            producers.add(tensor.operation)
    if isinstance(op, mtf.Assign):
        producers.update(op.variables)
    if isinstance(op, mtf.PrintOperation):
        producers.update(tensor.operation for tensor in op._data)
    if isinstance(op, mtf.Depend):
        for dependency in op._dependencies:
            producers.add(
                dependency if isinstance(dependency, mtf.Operation) else dependency.operation
            )
    if isinstance(op, mtf.WhileLoopOperation):
        for inner in (*op._cond_ops, *op._body_ops):
            producers.update(_producers(inner))
        producers.update(t.operation for t in (op._cond_output, *op._body_outputs))
    return producers


def _draw_after(op: mtf.Operation) -> mtf.Tensor | None:
    """A zero that the operation, if it draws random numbers, waits for: see `recompute_grad`."""
    return getattr(op, "draw_after", None)


def _only_if(op: mtf.Operation) -> mtf.Tensor | None:
    """A boolean scalar without which an operation is not carried out: see `only_if`."""
    return getattr(op, "only_if", None)


class Lowering(mtf.Lowering):
    """Lowers a graph's live operations with one `SpmdMeshImpl`."""

    def __init__(
        self,
        graph: mtf.Graph,
        mesh: mtf.Mesh,
        mesh_impl: SpmdMeshImpl,
        needed: Iterable[mtf.Tensor],
    ) -> None:
        """Lowers what `needed` tensors and the graph's effects (assignments, prints) depend on."""
        self.graph = graph
        self.mesh_to_impl = {mesh: mesh_impl}
        self.tensors: dict = {}
        self.operations: dict = {}
        self.variables: dict = {}
        self._counters: list = []
        self._loop_iterations: list[tf.Tensor] = []
        self._microbatch: Microbatch | None = None
        self._draw_after: tf.Tensor | None = None
        self._reductions = Reductions(mesh_impl)
        self._needed: set[mtf.Tensor] = set()
        self._users: dict[mtf.Tensor, list[mtf.Operation | None]] = defaultdict(list)
        self._users_known: set[mtf.Operation] = set()
        # By graph too: a tensor made inside a loop's body is of no use outside of it.
        self._shared: dict[tuple[tf.Graph, Hashable], Any] = {}
        self.lower_operations(graph.operations, needed)

    def lower_operations(
        self, operations: Sequence[mtf.Operation], needed: Iterable[mtf.Tensor]
    ) -> None:
        """Lowers those of the operations that `needed` tensors or effects depend on."""
        needed = list(needed)
        live = live_operations(operations, needed)
        self._note_users(live, needed)
        self._needed |= surely_needed(live, self.users) | set(needed)
        (mesh_impl,) = self.mesh_to_impl.values()
        for op in live:
            zero = _draw_after(op)
            self._draw_after = None if zero is None else self.slice(zero)
            with tf.name_scope(op.name), mesh_impl.collectives.asked_by(op.name):
                self._lower(op)

    def _note_users(
        self, operations: Iterable[mtf.Operation], needed: Iterable[mtf.Tensor]
    ) -> None:
        """Notes who uses each tensor, also inside of loops, before these are lowered."""
        for op in all_operations(operations):
            if op not in self._users_known:
                self._users_known.add(op)
                for tensor in op.inputs:
                    self._users[tensor].append(op)
        for tensor in needed:
            self._users[tensor].append(None)

    def _lower(self, op: mtf.Operation) -> None:
        rule = _RULES.get(type(op), type(op).lower)
        if puts_off(op, self.users):
            rule = lower_linear
        flag = _only_if(op)
        if flag is None:
            rule(op, self)
        else:
            lower_only_if(op, flag, rule, self)

    @contextlib.contextmanager
    def inside_loop(self, iteration: tf.Tensor) -> Iterator[None]:
        """While this is active, the body of a loop is lowered.

        Args:
          iteration: the number of the iteration, an int64 scalar: random operations of the body
            differ from one to the next.
        """
        self._loop_iterations.append(iteration)
        try:
            yield
        finally:
            self._loop_iterations.pop()

    @contextlib.contextmanager
    def inside_microbatch(self, microbatch: Microbatch) -> Iterator[None]:
        """While this is active, what is to be done with a microbatch is lowered: random operations
        draw what they would draw for its rows in the whole batch."""
        self._microbatch = microbatch
        try:
            yield
        finally:
            self._microbatch = None

    def compiled(self, fn: Callable[..., T]) -> Callable[..., T]:
        """`fn`, made one kernel by XLA where the program lets it and its inputs are large.

        Args:
          fn: from slices to slices, without collectives; worth it where it makes several passes
            over something large.
        """
        (mesh_impl,) = self.mesh_to_impl.values()

        def in_xla(*slices: tf.Tensor) -> T:
            if mesh_impl.on_cpu:
                sum_in_stages()
            return fn(*slices)

        compiled = tf.function(in_xla, jit_compile=True, autograph=False)

        def call(*slices: tf.Tensor) -> T:
            elements = sum(math.prod(x.shape.as_list()) for x in slices)
            pays = mesh_impl.compiles_regions and elements >= _WORTH_COMPILING
            return (compiled if pays else fn)(*slices)

        return call

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """What several operations compute alike, made once, by the first that asks for it.

        In a loop of small operations, such as decoding, each one more costs.

        Args:
          key: all that it depends on.
          make: makes it, of tensors that were lowered outside of any condition.
        """
        where = (tf.compat.v1.get_default_graph(), key)
        if where not in self._shared:
            self._shared[where] = make()
        return self._shared[where]

    def random_bits(self, name: str, shape: mtf.Shape) -> tf.Tensor:
        """32 random bits (uint32) for each element of this processor's slice.

        They are a function of the program's seed, the name, the step, the number of the iteration
        if they are drawn inside a loop, and the element's place in the global tensor (of the whole
        batch, where it is computed in microbatches).

        Args:
          name: of the operation that draws: different operations draw different numbers.
          shape: the global shape.
        """
        (mesh_impl,) = self.mesh_to_impl.values()
        return mesh_impl.random_bits(
            name, shape, self._loop_iterations, self._draw_after, self._microbatch
        ).slice

    def element_index(self, shape: mtf.Shape) -> tf.Tensor:
        """Where each element of this processor's slice is in the global tensor: its row-major
        index, uint64; of a microbatch's tensor that in the whole batch's."""
        (mesh_impl,) = self.mesh_to_impl.values()
        return mesh_impl.element_index(shape, self._microbatch)

    def slice(self, tensor: mtf.Tensor) -> tf.Tensor:
        """The processor's slice of a lowered tensor, reduced if that was still to be done."""
        return self.tensors[tensor].to_laid_out_tensor().slice

    def is_surely_needed(self, tensor: mtf.Tensor) -> bool:
        """Whether an operation needs a tensor's value, so that a sum put off will be made."""
        return tensor in self._needed

    def users(self, tensor: mtf.Tensor) -> Sequence[mtf.Operation | None]:
        """The operations that use a tensor; None stands for who asks for an output."""
        return self._users[tensor]

    def partial_sum(self, tensor: mtf.Tensor) -> tuple[tf.Tensor, list[int]]:
        """What this processor adds to its slice of a lowered tensor, and the mesh axes over which
        that is still to be summed up (none if the slice is complete)."""
        laid_out = self.tensors[tensor]
        if isinstance(laid_out, mtf.LazyAllreduceSum) and laid_out._reduced is None:
            return laid_out.laid_out_input.slice, laid_out.mesh_axes
        return laid_out.to_laid_out_tensor().slice, []

    def set_tensor_lowering(self, tensor: mtf.Tensor, laid_out_tensor: Any) -> None:
        """Says what a tensor is; a sum over mesh axes is put off."""
        if type(laid_out_tensor) is mtf.LazyAllreduceSum:
            laid_out_tensor = self._reductions.put_off(
                laid_out_tensor, tensor.name, tensor in self._needed
            )
        super().set_tensor_lowering(tensor, laid_out_tensor)

    def set_slice(self, tensor: mtf.Tensor, value: tf.Tensor) -> None:
        """Says what this processor's slice of a tensor is."""
        self.set_tensor_lowering(tensor, LaidOutTensor([value]))

    def set_partial_sum(
        self, tensor: mtf.Tensor, value: tf.Tensor, summed: Iterable[mtf.Dimension]
    ) -> None:
        """Says what this processor adds to its slice of a tensor that is a sum over `summed`
        dimensions.

        The sum over the mesh axes that split them is left for later: others may join it, or nobody
        may ask.
        """
        mesh_impl = self.mesh_impl(tensor)
        axes = {mesh_impl.tensor_dimension_to_mesh_axis(dim) for dim in summed} - {None}
        self.set_sum_over_axes(tensor, value, sorted(axes))

    def set_sum_over_axes(self, tensor: mtf.Tensor, value: tf.Tensor, axes: list[int]) -> None:
        """The same, for a sum over mesh axes; without any, `value` is the slice."""
        laid_out = LaidOutTensor([value])
        if axes:
            laid_out = mtf.LazyAllreduceSum(self.mesh_impl(tensor), laid_out, axes)
        self.set_tensor_lowering(tensor, laid_out)


def lower_constant(op: mtf.Constant, lowering: Lowering) -> None:
    """Makes a slice of a constant, which is one number or, unlike its docstring says, a whole
    array."""
    if np.ndim(op._value) == 0:
        op.lower(lowering)
        return
    whole = tf.constant(op._value, op.outputs[0].dtype, op.outputs[0].shape.to_integer_list)
    lowering.set_tensor_lowering(
        op.outputs[0], lowering.mesh_impl(op).import_tf_tensor(op.outputs[0], whole)
    )


def lower_reduce(op: mtf.ReduceOperation, lowering: Lowering) -> None:
    """Reduces a slice; a sum over the mesh is put off."""
    (x,), (y,) = op.inputs, op.outputs
    if op._reduction_fn_string != "SUM":
        op.lower(lowering)
        return
    summed = [axis for axis, dim in enumerate(x.shape.dims) if dim not in y.shape.dims]
    part = reduce_sum(lowering.slice(x), summed)
    kept = [dim for dim in x.shape.dims if dim in y.shape.dims]
    if kept != y.shape.dims:
        part = tf.transpose(part, [kept.index(dim) for dim in y.shape.dims])
    lowering.set_partial_sum(y, part, [x.shape.dims[axis] for axis in summed])


# Operations that are lowered otherwise than mesh-tensorflow does.
_RULES: dict[type[mtf.Operation], Callable[[mtf.Operation, Lowering], None]] = {
    mtf.AddOperation: lower_add,
    mtf.EinsumOperation: lower_einsum,
    mtf.OneHotOperation: lower_one_hot,
    mtf.Constant: lower_constant,
    mtf.Conv2dTransposeOperation: lower_transposed_convolution,
    mtf.Conv3dTransposeOperation: lower_transposed_convolution,
    mtf.Depend: lower_depend,
    mtf.GenericGradOperation: lower_generic_gradient,
    mtf.PoolBackPropOperation: lower_pool_gradient,
    mtf.PrintOperation: lower_print,
    mtf.RandomOperation: lower_random,
    mtf.ReduceOperation: lower_reduce,
    mtf.ReshapeOperation: lower_reshape,
    mtf.ScalarSummaryOperation: lower_scalar_summary,
    mtf.WhileLoopOperation: lower_while_loop,
}
