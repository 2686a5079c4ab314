"""The interface through which an operation reads its inputs and sets its outputs.

`Operation.lower(lowering)` reads the slices of the operation's inputs from a `Lowering`, and sets
the slice of each output:

```python
def lower(self, lowering):  # y = tanh(x)
    lowering.set_slice(self.outputs[0], tf.tanh(lowering.slice(self.inputs[0])))
```

An operation that sums over a split dimension calls `set_partial_sum` instead. The all-reduce is
then deferred (`t2tp.lowering.deferred_sums`), and `slice` completes it.

`GraphLowering` implements the protocol. Operations, and the rules for mesh-tensorflow's operations
(`_RULES` in `lowering.py`), import only the protocol, which avoids circular imports.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.lowering.microbatch import Microbatch
from t2tp.mesh.layout import Layout

T = TypeVar("T")

# The mesh axes along which a slice is in head-tail order: see `t2tp.lowering.head_tail`.
Order: TypeAlias = "frozenset[int]"


class Relayout(NamedTuple):
    """A processor's slice of a tensor, and the shape to convert the tensor to.

    Attributes:
      x: the slice.
      name: name of the operation that converts the slice.
      old_shape: global shape of the tensor of which `x` is a slice.
      new_shape: global shape of the new tensor.
    """

    x: tf.Tensor
    name: str
    old_shape: upstream.Shape
    new_shape: upstream.Shape


class Lowering(Protocol):
    """The lowering of a graph, as operations see it.

    Attributes:
      tensors: the value of each lowered tensor: a slice, a deferred sum, or a lazy one-hot tensor.
      operations: the result of each lowered operation without outputs, such as an assignment.
      variables: the processor's slice of each lowered variable.
      scatters: deferred reduce-scatters; see `t2tp.lowering.scatters`.
      orders: the order of each slice; see `t2tp.lowering.head_tail`.
      updated_in_place: tensors of the full batch whose rows a microbatch may overwrite.
    """

    tensors: dict[upstream.Tensor, Any]
    operations: dict[upstream.Operation, Any]
    variables: dict[upstream.Variable, Any]
    scatters: Any
    orders: Any
    updated_in_place: set[upstream.Tensor]

    def mesh_impl(self, of: Any) -> SpmdMeshImpl:
        """Returns the mesh implementation: layout, collectives and shapes of slices."""

    def slice(self, tensor: upstream.Tensor) -> tf.Tensor:
        """Returns the processor's slice of a tensor; a deferred sum is reduced."""

    def slice_in_order(self, tensor: upstream.Tensor, order: Order) -> tf.Tensor:
        """Returns the slice in head-tail or consecutive order."""

    def masked_slice(
        self,
        tensor: upstream.Tensor,
        dims: Collection[upstream.Dimension] | None = None,
        value: complex = 0,
    ) -> tf.Tensor:
        """Returns the slice with its padding along `dims` (default: all) replaced by `value`."""

    def masking(
        self,
        tensors: Iterable[upstream.Tensor],
        dims: Collection[upstream.Dimension],
        value: str = "",
    ) -> AbstractContextManager[None]:
        """Masks the padding of `tensors` along `dims` inside the context.

        The padding becomes 0 or, if `value` is `min` or `max`, the dtype's min or max.
        """

    def partial_sum(self, tensor: upstream.Tensor) -> tuple[tf.Tensor, list[int]]:
        """Returns a tensor's partial sum on the processor, and the mesh axes to sum over."""

    def set_slice(self, tensor: upstream.Tensor, value: tf.Tensor) -> None:
        """Sets the processor's slice of an output."""

    def set_partial_sum(
        self, tensor: upstream.Tensor, value: tf.Tensor, summed: Iterable[upstream.Dimension]
    ) -> None:
        """Sets a partial sum over split dimensions; the all-reduce is deferred."""

    def parts_of(self, dim: upstream.Dimension, layout: Layout | None = None) -> tuple[int, int]:
        """Returns how many parts a sum over `dim` has in total, and how many this processor has."""

    def set_parts(
        self,
        tensor: upstream.Tensor,
        parts: Sequence[tf.Tensor],
        axis: int | None,
        cut: tuple[str, int],
    ) -> None:
        """With `exact_sums`: sets this processor's parts of a sum over a dimension, in order.

        `axis` is the mesh axis to sum over; None if this processor has all parts. `cut` is the
        dimension's name and the total number of parts of all processors.
        """

    def add_parts(self, tensor: upstream.Tensor, addends: Sequence[upstream.Tensor]) -> bool:
        """With `exact_sums`: adds two deferred sums part by part; returns False if it cannot."""

    def map_sum(
        self, y: upstream.Tensor, x: upstream.Tensor, fn: Callable[[tf.Tensor], tf.Tensor]
    ) -> None:
        """Sets `y` to `fn` of `x`; if `x` is a deferred sum, to the sum of `fn` of its addends."""

    def tree_leaf(self, tensor: upstream.Tensor) -> tuple[tf.Tensor, list[int]]:
        """With `exact_sums`: returns this microbatch's addend of the sum over all microbatches.

        The sum is a fixed tree of additions (`t2tp.lowering.exact_sums`). Also returns the mesh
        axes over which to sum the total after the last microbatch.
        """

    def set_sum_over_axes(self, tensor: upstream.Tensor, value: tf.Tensor, axes: list[int]) -> None:
        """Sets a partial sum over mesh axes; without axes, `value` is the slice itself."""

    def set_tensor_lowering(self, tensor: upstream.Tensor, laid_out_tensor: Any) -> None:
        """Sets an output to another representation, such as a lazy one-hot tensor."""

    def users(self, tensor: upstream.Tensor) -> Sequence[upstream.Operation | None]:
        """Returns the operations that use a tensor; None stands for an output of the program."""

    def needs_value(self, tensor: upstream.Tensor) -> bool:
        """Whether an operation needs a tensor's value. A deferred sum will then be reduced."""

    def latest_activation(self) -> tf.Tensor | None:
        """Returns the latest activation; None if it is not in TensorFlow's current graph."""

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns a value that several operations need; the first operation computes it."""

    def shared_random(self, key: Hashable, make: Callable[[], T]) -> T:
        """Like `shared`, for a value computed from random bits."""

    def random_bits(self, name: str, shape: upstream.Shape, order: Order = ...) -> tf.Tensor:
        """Returns 32 random bits per element, the same global tensor on every mesh."""

    def random_mask(
        self, name: str, shape: upstream.Shape, probability: float, order: Order
    ) -> tf.Tensor:
        """Returns a random boolean per element, true with `probability`."""

    def element_index(self, shape: upstream.Shape) -> tf.Tensor:
        """Returns each element's row-major index in the global tensor."""

    def compiled(self, fn: Callable[..., T]) -> Callable[..., T]:
        """Returns `fn`, compiled by XLA if the program allows it and the inputs are large."""

    def isolated(self) -> AbstractContextManager[None]:
        """Discards tensors that are lowered inside the context, such as a branch's tensors."""

    def inside_loop(self, iteration: tf.Tensor) -> AbstractContextManager[None]:
        """Lowers a loop's body inside the context."""

    def inside_microbatch(self, microbatch: Microbatch) -> AbstractContextManager[None]:
        """Lowers a microbatch's computation inside the context."""

    def lower_operations(
        self,
        operations: Sequence[upstream.Operation],
        needed: Iterable[upstream.Tensor],
        addends: Iterable[upstream.Tensor] = (),
    ) -> None:
        """Lowers the operations on which side effects and the tensors in `needed` depend.

        A loop adds up the tensors in `addends`. It needs only their partial sums, so they are not
        reduced in each iteration.
        """
