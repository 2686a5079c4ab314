"""Lowers an mtf graph: the operations on which its outputs and side effects depend."""

import contextlib
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering import random
from t2tp.lowering.context import Order
from t2tp.lowering.deferred_sums import DeferredSum, DeferredSums, required_values
from t2tp.lowering.exact_sums import dims_in_parts, lower_in_parts, lower_in_vectors
from t2tp.lowering.gather_schedule import LatestActivation, lower_gathers, lowering_order
from t2tp.lowering.head_tail import CONSECUTIVE, Orders
from t2tp.lowering.linear_operations import can_defer_past, lower_linear
from t2tp.lowering.mesh_impl import LaidOutTensor, LazyTensor, SpmdMeshImpl
from t2tp.lowering.microbatch import Microbatch
from t2tp.lowering.operation import dims_of, hooks, is_local, signature_of
from t2tp.lowering.rules import lower_conditionally, lower_shapes, rule_of
from t2tp.lowering.signature import applies_function, has
from t2tp.lowering.staged_sums import sum_in_stages
from t2tp.mesh.dimensions import declared
from t2tp.mesh.graph_memo import GraphMemo
from t2tp.mesh.layout import Layout
from t2tp.mesh.set_temporarily import set_temporarily

T = TypeVar("T")

# Functions of fewer input elements are not compiled. Compilation takes 0.1 s of a core per device,
# and would save less time than that.
_WORTH_COMPILING = 1 << 18

_EFFECTS = (upstream.Assign, upstream.PrintOperation)


def all_operations(operations: Iterable[upstream.Operation]) -> Iterator[upstream.Operation]:
    """Yields the operations; after each loop come the operations inside this loop."""
    for op in operations:
        yield op
        if isinstance(op, upstream.WhileLoopOperation):
            yield from all_operations((*op._cond_ops, *op._body_ops))


def live_operations(
    operations: Sequence[upstream.Operation],
    needed: Iterable[upstream.Tensor],
    *,
    with_effects: bool = True,
) -> list[upstream.Operation]:
    """Returns the operations on which side effects and the tensors in `needed` depend, in order.

    Without `with_effects`, only those on which the tensors depend.

    Building gradients leaves many unused operations. TensorFlow would prune them, but not their
    collectives.
    """
    producers = {tensor.operation for tensor in needed}
    live = []
    for op in reversed(operations):
        if op in producers or (with_effects and has_effect(op)):
            live.append(op)
            producers.update(_producers(op))
    return live[::-1]


def has_effect(op: upstream.Operation) -> bool:
    """Whether an operation, or one inside it, assigns or prints."""
    return any(isinstance(inner, _EFFECTS) for inner in all_operations([op]))


def tensors_read(op: upstream.Operation) -> list[upstream.Tensor]:
    """Returns the tensors that an operation, or an operation inside it, reads."""
    tensors = [*op.inputs]
    tensors += [x for x in (hooks(op).rng_dependency, hooks(op).predicate) if x is not None]
    if isinstance(op, upstream.PrintOperation):
        tensors += op._data
    if isinstance(op, upstream.Depend):
        for x in op._dependencies:
            tensors += x.outputs if isinstance(x, upstream.Operation) else [x]
    if isinstance(op, upstream.WhileLoopOperation):
        for inner in (*op._cond_ops, *op._body_ops):
            tensors += tensors_read(inner)
        tensors += [op._cond_output, *op._body_outputs]
    return tensors


def outer_tensors_read(op: upstream.Operation) -> list[upstream.Tensor]:
    """Returns the tensors that an operation reads, except those that a loop creates in its body."""
    inside = {*all_operations([op])} - {op}
    return [x for x in tensors_read(op) if x.operation not in inside]


def _producers(op: upstream.Operation) -> set[upstream.Operation]:
    """Returns the producers of the tensors that `op` reads, and the variables that it assigns."""
    producers = {tensor.operation for tensor in tensors_read(op)}
    for inner in all_operations([op]):
        if isinstance(inner, upstream.Assign):
            producers.update(inner.variables)
        if isinstance(inner, upstream.Depend):
            producers.update(x for x in inner._dependencies if isinstance(x, upstream.Operation))
    return producers


def _unknown(dtype: tf.DType, shape: list[int]) -> LaidOutTensor:
    """Returns a placeholder for a slice of an abstract program."""
    return LaidOutTensor([tf.compat.v1.placeholder(dtype, shape)])


class GraphLowering(upstream.Lowering):
    """The lowering of a graph's live operations with one `SpmdMeshImpl`.

    Attributes:
      sums: the deferred sums.
      orders: the order of each tensor's slice.
      shared: `shared(key, make)` is a value that several operations need, computed by `make` for
        the first of them. `key` is everything that the value depends on. `make` must not use
        tensors of a conditional branch.
      latest_activation: the most recently lowered activation.
      needed: the tensors whose value an operation needs, so that a deferred sum is reduced.
      read: the tensors that an operation or the caller reads. Some variables are only written.
      updated_in_place: tensors of the full batch whose rows a microbatch may overwrite.
    """

    def __init__(
        self,
        graph: upstream.Graph,
        mesh: upstream.Mesh,
        mesh_impl: SpmdMeshImpl,
        needed: Iterable[upstream.Tensor],
    ) -> None:
        """Lowers the operations that `needed` tensors, assignments and prints depend on."""
        # mesh-tensorflow's constructor is not called: it lowers all operations, also unused ones.
        self.graph = graph
        self.mesh_to_impl = {mesh: mesh_impl}
        self._mesh_impl = mesh_impl
        self.tensors: dict = {}
        self.operations: dict = {}
        self.variables: dict = {}
        self._counters: list = []
        self._loop_iterations: list[tf.Tensor] = []
        self._microbatch: Microbatch | None = None
        self._rng_dependency: tf.Tensor | None = None
        self.sums = DeferredSums(mesh_impl)
        self.orders = Orders(self, mesh_impl, all_operations(graph.operations))
        self.needed: set[upstream.Tensor] = set()
        # Includes reads inside loops: a loop may read a variable that is lowered outside it.
        self.read = set(needed).union(*map(tensors_read, graph.operations))
        self._users: dict[upstream.Tensor, list[upstream.Operation | None]] = defaultdict(list)
        self._users_known: set[upstream.Operation] = set()
        self.shared = GraphMemo()
        self.latest_activation = LatestActivation()
        self.updated_in_place: set[upstream.Tensor] = set()
        self.lower_operations(graph.operations, needed)

    def lower_operations(
        self,
        operations: Sequence[upstream.Operation],
        needed: Iterable[upstream.Tensor],
        addends: Iterable[upstream.Tensor] = (),
    ) -> None:
        """Lowers the operations on which side effects and the tensors in `needed` depend.

        `addends` are those tensors in `needed` that a loop adds up. The loop reduces their total
        once, after the last iteration, so it needs only partial sums.
        """
        needed = list(needed)
        live = live_operations(operations, needed)
        for op in all_operations(live):
            if op not in self._users_known:
                self._users_known.add(op)
                for tensor in op.inputs:
                    self._users[tensor].append(op)
        for tensor in needed:
            self._users[tensor].append(None)
        self.needed |= required_values(live, self.users) | (set(needed) - set(addends))
        storage = self._mesh_impl.layout.storage
        for group in lowering_order(live, storage):
            op = group[0]
            dependency = hooks(op).rng_dependency
            self._rng_dependency = None if dependency is None else self.slice(dependency)
            with tf.name_scope(op.name), self._mesh_impl.collectives.attributed_to(op.name):
                if len(group) > 1:
                    lower_gathers(group, self)
                else:
                    self._lower(op)
                if storage.stage == 3 and self._mesh_impl.computes:
                    for each in group:
                        self.latest_activation.note(each, self)

    def _lower(self, op: upstream.Operation) -> None:
        rule = lower_linear if can_defer_past(op, self.users) else rule_of(type(op))
        op_hooks, mesh_impl = hooks(op), self._mesh_impl
        # An abstract program records collectives. Operations without any need only their shapes.
        if not mesh_impl.computes and is_local(op, mesh_impl.layout) and not self._defers(op, rule):
            rule = lower_shapes
        elif mesh_impl.layout.exact_sums and (dims := dims_in_parts(op, self)):
            rule = functools.partial(lower_in_parts, rule=rule, dims=dims)
        elif mesh_impl.layout.exact_sums and rule is not lower_linear and applies_function(op):
            rule = lower_in_vectors
        predicate = op_hooks.predicate
        with self.orders.during(op, outer_tensors_read):
            if predicate is None:
                rule(op, self)
            else:
                lower_conditionally(op, predicate, rule, self)

    def _defers(self, op: upstream.Operation, rule: Callable[..., None]) -> bool:
        """Whether `rule` may lower an operation without reducing a deferred sum that it reads."""
        is_linear = rule is lower_linear or signature_of(op).linear
        return is_linear and any(isinstance(self.tensors[x], DeferredSum) for x in op.inputs)

    @contextlib.contextmanager
    def isolated(self) -> Iterator[None]:
        """When the context ends, discards the tensors that were lowered inside it.

        One branch of a condition cannot use another branch's tensors.
        """
        tensors, in_place = dict(self.tensors), set(self.updated_in_place)
        with (
            set_temporarily(self, tensors=tensors, updated_in_place=in_place),
            self.orders.isolated(),
        ):
            yield

    def inside_loop(self, iteration: tf.Tensor) -> contextlib.AbstractContextManager[None]:
        """Lowers a loop's body inside the context.

        The body's random numbers depend on `iteration`, the index of the iteration, an int64
        scalar.
        """
        return set_temporarily(self, _loop_iterations=[*self._loop_iterations, iteration])

    def inside_microbatch(self, microbatch: Microbatch) -> contextlib.AbstractContextManager[None]:
        """Lowers a microbatch's computation inside the context.

        Its rows get the random numbers that they have in the full batch.
        """
        return set_temporarily(self, _microbatch=microbatch)

    def compiled(self, fn: Callable[..., T]) -> Callable[..., T]:
        """Returns `fn`, compiled by XLA if the program allows it and the inputs are large.

        `fn` is a function of slices without collectives.
        """
        target = self._mesh_impl.target

        def in_xla(*slices: tf.Tensor) -> T:
            if target.on_cpu:
                sum_in_stages()
            return fn(*slices)

        compiled = tf.function(in_xla, jit_compile=True, autograph=False)

        def call(*slices: tf.Tensor) -> T:
            elements = sum(math.prod(x.shape.as_list()) for x in slices)
            pays = target.compiles_regions and elements >= _WORTH_COMPILING
            return (compiled if pays else fn)(*slices)

        return call

    def random_bits(
        self,
        name: str,
        shape: upstream.Shape,
        order: Order = CONSECUTIVE,
        convert: Callable[..., tf.Tensor] = random.unchanged,
        *options: object,
    ) -> tf.Tensor:
        """Returns 32 random bits (uint32) for each element of this processor's slice.

        The bits depend on the program's seed, the operation's name, the step, the iteration inside
        a loop, and the element's index in the global tensor of the full batch. `convert` and
        `options` as in `random.draw`.
        """
        mesh_impl = self._mesh_impl
        if not mesh_impl.computes:
            bits = _unknown(tf.uint32, mesh_impl.slice_shape(shape))
            return convert(bits.slice, *options)
        key = mesh_impl.random_key(name)
        for iteration in self._loop_iterations:  # The outermost loop first.
            key = random.fold_in(key, iteration)
        counter = mesh_impl.counter(shape, self._microbatch, order, self._rng_dependency)
        return random.draw(convert, key, *counter, options=options, xla=mesh_impl.target.uses_xla)

    def random_mask(
        self, name: str, shape: upstream.Shape, probability: float, order: Order
    ) -> tf.Tensor:
        """Returns a boolean for each element of this processor's slice, true with `probability`.

        The forward and the backward pass get the same tensor.
        """
        return self.shared_random(
            ("mask", name, *shape.dims, probability, order),
            lambda: self.random_bits(name, shape, order, random.is_below, probability),
        )

    def shared_random(self, key: Hashable, make: Callable[[], T]) -> T:
        """Like `shared`, for a value computed from random bits.

        Adds the iteration, the microbatch and the control dependency of recomputation to the key.
        """
        microbatch = self._microbatch
        tensors = [self._rng_dependency, microbatch and microbatch.number, *self._loop_iterations]
        return self.shared((key, *(x if x is None else x.ref() for x in tensors)), make)

    def element_index(self, shape: upstream.Shape) -> tf.Tensor:
        """Returns each slice element's row-major index in the tensor of the full batch, uint64."""
        return self._mesh_impl.element_index(shape, self._microbatch)

    def slice(self, tensor: upstream.Tensor) -> tf.Tensor:
        """Returns the processor's slice of a lowered tensor, in the current operation's order.

        A deferred sum is reduced.
        """
        return self.slice_in_order(tensor, self.orders.current)

    def masked_slice(
        self,
        tensor: upstream.Tensor,
        dims: Collection[upstream.Dimension] | None = None,
        value: complex = 0,
    ) -> tf.Tensor:
        """Returns the slice with `value` for its padding; see `SpmdMeshImpl.masked`."""
        part = self.slice(tensor)
        return self.mesh_impl(tensor).masked(part, tensor.shape, dims, value)

    @contextlib.contextmanager
    def masking(
        self,
        tensors: Iterable[upstream.Tensor],
        dims: Collection[upstream.Dimension],
        value: str = "",
    ) -> Iterator[None]:
        """Masks the padding of tensors along `dims` while an operation reduces them.

        `value` is `min` or `max`: padding becomes the smallest or the largest number of the dtype.
        By default it becomes 0.
        """
        padded = [dim for dim in dims if self._mesh_impl.layout.is_padded(dim)]
        before = {x: self.tensors[x] for x in tensors if padded and {*padded} & {*x.shape.dims}}
        for x in before:
            neutral = getattr(x.dtype, value) if value else 0
            self.tensors[x] = LaidOutTensor([self.masked_slice(x, padded, neutral)])
        try:
            yield
        finally:
            self.tensors.update(before)

    def slice_in_order(self, tensor: upstream.Tensor, order: Order) -> tf.Tensor:
        """Returns the slice in the given order, for operations with `Hooks.chooses_orders`."""
        return self.orders.converted(tensor, order).slice

    def users(self, tensor: upstream.Tensor) -> Sequence[upstream.Operation | None]:
        """Returns the operations that use a tensor; None stands for an output of the program."""
        return self._users[tensor]

    def partial_sum(self, tensor: upstream.Tensor) -> tuple[tf.Tensor, list[int]]:
        """Returns the slice of a lowered tensor, or this processor's partial sum of the slice.

        Returns:
          the tensor, and the mesh axes over which to sum it; no axes if it is the complete slice.
        """
        laid_out = self.tensors[tensor]
        if not self.orders.has(tensor):
            return self.slice(tensor), []
        if isinstance(laid_out, upstream.LazyAllreduceSum) and laid_out._reduced is None:
            return laid_out.laid_out_input.slice, laid_out.mesh_axes
        return laid_out.to_laid_out_tensor().slice, []

    def set_tensor_lowering(self, tensor: upstream.Tensor, laid_out_tensor: Any) -> None:
        """Sets the value of a tensor; a sum over mesh axes is deferred."""
        if type(laid_out_tensor) is upstream.LazyAllreduceSum:
            partial_sum, axes = laid_out_tensor.laid_out_input.slice, laid_out_tensor.mesh_axes
            return self.set_parts(tensor, [partial_sum], axes, None)
        super().set_tensor_lowering(tensor, laid_out_tensor)
        self.orders.set(tensor, self.orders.current)

    def set_slice(self, tensor: upstream.Tensor, value: tf.Tensor) -> None:
        """Sets the processor's slice of a tensor."""
        self.set_tensor_lowering(tensor, LaidOutTensor([value]))

    def set_partial_sum(
        self, tensor: upstream.Tensor, value: tf.Tensor, summed: Iterable[upstream.Dimension]
    ) -> None:
        """Sets the processor's partial sum of a tensor that is a sum over `summed` dimensions.

        The all-reduce over the mesh axes that split these dimensions is deferred.
        """
        self.set_sum_over_axes(tensor, value, self._axes_of(summed))

    def _axes_of(self, dims: Iterable[upstream.Dimension]) -> list[int]:
        """Returns the mesh axes that split dimensions."""
        axes = map(self._mesh_impl.tensor_dimension_to_mesh_axis, dims)
        return sorted({axis for axis in axes if axis is not None})

    def set_shapes(self, op: upstream.Operation, inputs: Iterable[upstream.Tensor]) -> None:
        """Sets placeholders as the outputs of an operation that reads `inputs`.

        An output is the sum over those of the signature's `summed` dimensions that it lacks. For
        abstract programs, which need only shapes and collectives.
        """
        summed = [dim for dim in dims_of(op) if has(signature_of(op).summed, op, dim)]
        for x in inputs:
            # A deferred sum is reduced, so that its collective is counted.
            if not (isinstance(self.tensors[x], LazyTensor) and self.orders.has(x)):
                self.slice(x)
        for y in op.outputs:
            axes = self._axes_of(dim for dim in summed if dim.name not in y.shape.dimension_names)
            shape = self._mesh_impl.slice_shape(y.shape)
            make = functools.partial(_unknown, y.dtype, shape)
            if axes:
                self.set_sum_over_axes(y, make().slice, axes)
            else:
                # Only collectives read placeholders, so most are never created.
                self.set_tensor_lowering(y, LazyTensor(make, shape))

    def parts_of(self, dim: upstream.Dimension, layout: Layout | None = None) -> tuple[int, int]:
        """Returns the number of parts of a sum over a dimension, and the number on this processor.

        Inside a microbatch, the first number is for the full batch, the second for the microbatch.

        Raises:
          LayoutError: the parts cannot be divided among processors and microbatches.
        """
        layout, microbatch = layout or self._mesh_impl.layout, self._microbatch
        size = dim.size if microbatch is None else microbatch.whole_size(dim)
        num_parts, processors = layout.num_parts(dim.name, size), layout.num_slices(dim.name)
        ways = processors * (size // dim.size)
        is_cut = num_parts % processors or (num_parts > 1 and num_parts % ways)
        if layout.exact_sums and is_cut:
            raise layout.inexact(
                f"dimension {dim.name!r} of size {size}",
                f"sums it in {num_parts} parts, not divisible by {ways} (processors x"
                " microbatches): use another mesh_shape or number of microbatches",
            )
        return num_parts, max(1, num_parts // ways)

    def add_parts(self, tensor: upstream.Tensor, addends: Sequence[upstream.Tensor]) -> bool:
        """Adds two deferred sums part by part, unless their values are needed.

        Sums over the batch are not added part by part, unless they are scalars. They may be
        gradients of a weight that two stages of a pipeline use. Each stage must then complete its
        own sum before the two sums are added.

        Returns:
          whether it added them. This depends only on the graph, so it is the same on all meshes.
        """
        sums = [self.tensors[x] for x in addends]
        if any(
            not isinstance(x, DeferredSum) or x.cut is None or x.is_reduced or y in self.needed
            for x, y in zip(sums, addends, strict=True)
        ):
            return False
        first, second = sums
        if tensor.shape.dims and declared(first.cut[0]).rows:
            return False
        if first.cut != second.cut or any(x.shape != tensor.shape for x in addends):
            return False
        parts = [a + b for a, b in zip(first.parts, second.parts, strict=True)]
        self.set_parts(tensor, parts, first.mesh_axes, first.cut)
        return True

    def map_sum(
        self, y: upstream.Tensor, x: upstream.Tensor, fn: Callable[[tf.Tensor], tf.Tensor]
    ) -> None:
        """Sets `y` to `fn` of `x`; if `x` is a deferred sum, to the sum of `fn` of its addends.

        `fn` must be linear.
        """
        value = self.tensors[x]
        if not self._mesh_impl.layout.exact_sums:
            addend, axes = self.partial_sum(x)
            self.set_sum_over_axes(y, fn(addend), axes)
        elif isinstance(value, DeferredSum) and value.cut is not None and x not in self.needed:
            self.set_parts(y, [fn(part) for part in value.parts], value.mesh_axes, value.cut)
        else:
            self.set_slice(y, fn(self.slice(x)))

    def tree_leaf(self, tensor: upstream.Tensor) -> tuple[tf.Tensor, list[int]]:
        """Returns the value that a microbatch adds to the sum over all microbatches.

        With `exact_sums` this sum is a binary tree of additions, and the value is a leaf.

        Returns:
          the leaf, and the mesh axes over which to sum the total after the last microbatch. There
          are no axes if microbatches are spread over the processors: each leaf is then already
          summed over the processors.

        Raises:
          LayoutError: the tensor is not a sum over the rows of the microbatch.
        """
        layout = self._mesh_impl.layout
        if not tensor.dtype.is_floating:
            return self.partial_sum(tensor)
        reduces, summed = layout.spreads_microbatches, tensor
        if reduces and isinstance(tensor.operation, upstream.ReshapeOperation):  # Sharded at rest.
            (summed,) = tensor.operation.inputs
        value = self.tensors[summed]
        is_sum = isinstance(value, DeferredSum) and value.cut and declared(value.cut[0]).rows
        if not is_sum or (value.is_reduced and not reduces):
            raise layout.inexact(
                tensor.name,
                "needs a sum over the batch that no operation of a microbatch reads: set"
                " microbatches=1",
            )
        return (self.slice(tensor), []) if reduces else self.partial_sum(tensor)

    def set_parts(
        self,
        tensor: upstream.Tensor,
        parts: Sequence[tf.Tensor],
        axes: list[int],
        cut: tuple[str, int] | None,
    ) -> None:
        """Sets this processor's parts of a sum over a dimension, and defers adding them.

        Args:
          tensor: the sum.
          parts: the parts, in order.
          axes: the mesh axes to sum over; empty: this processor has all parts.
          cut: with `exact_sums`, the dimension's name, and the number of its parts on all
            processors together.
        """
        separate = self._mesh_impl.layout.axes.separate(axes)
        value = DeferredSum(self.sums, tensor.name, parts, separate, cut)
        if separate and tensor in self.needed:
            self.sums.start(value)
        super().set_tensor_lowering(tensor, value)
        self.orders.set(tensor, self.orders.current)

    def set_sum_over_axes(self, tensor: upstream.Tensor, value: tf.Tensor, axes: list[int]) -> None:
        """Sets the processor's partial sum over mesh axes, or its slice if `axes` is empty."""
        if axes:
            self.set_parts(tensor, [value], axes, None)
        else:
            self.set_slice(tensor, value)
