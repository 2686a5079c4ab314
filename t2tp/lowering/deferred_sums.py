"""Deferred sums: a sum is reduced when its value is needed; small sums share a collective.

A matmul whose summed dimension is split leaves each processor with a partial sum of the result. On
`model:2` with `d_ff:model`,

    y [batch=8, d_model=6] = einsum(h [batch=8, d_ff=12/model], w_out [d_ff=12/model, d_model=6])
    processor 0 has the sum over d_ff 0-5, processor 1 the sum over d_ff 6-11

The all-reduce of `y` is deferred, because a later operation can make it cheaper. If `y` is added to
another partial sum over `model`, one all-reduce serves both. If a reshape splits `y` over `model`,
the all-reduce becomes a reduce-scatter.

If an operation needs the value of `y` itself, neither saving is possible. A large sum (above
`SMALL`) is then reduced at once, and its all-reduce overlaps with later operations. The cost of a
small collective is its latency, not its bytes. So small sums over the same axes, such as the
gradients of all norms, are collected until one of them is read or they fill a collective. The
gradient of a variable that is sharded at rest waits likewise, for a reduce-scatter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.linear_operations import Users, can_defer_past
from t2tp.lowering.mesh_impl import LaidOutTensor, SpmdMeshImpl
from t2tp.lowering.operation import signature_of
from t2tp.lowering.slice_shapes import reshaped
from t2tp.mesh.collectives import tree_sum

# Bytes. Larger sums share no collective: concatenating them takes as long as a collective.
SMALL = 1 << 20
# Small sums with this many bytes together fill a collective. It starts when it is full.
BUCKET = 1 << 22


def required_values(operations: list[upstream.Operation], users: Users) -> set[upstream.Tensor]:
    """Returns the tensors whose sums cannot stay deferred, because an operation needs the value."""
    return {
        tensor
        for op in operations
        if not (signature_of(op).linear or can_defer_past(op, users))
        for tensor in op.inputs
    }


@dataclass(eq=False)
class _PartialSum:
    """A processor's partial sum over mesh axes; its collective runs when the result is read.

    Attributes:
      sums: the deferred sums of the lowering.
      name: name of the summed tensor.
      parts: this processor's addends, in order. Without `exact_sums` there is one.
      mesh_axes: the mesh axes to sum over.
    """

    sums: DeferredSums
    name: str
    parts: Sequence[tf.Tensor]
    mesh_axes: list[int]
    _reduced: LaidOutTensor | None = field(default=None, init=False)

    @functools.cached_property
    def addend(self) -> tf.Tensor:
        """This processor's partial sum."""
        return tree_sum(self.parts)

    @property
    def is_reduced(self) -> bool:
        """Whether the sum has been reduced."""
        return self._reduced is not None

    @property
    def num_bytes(self) -> int:
        """The size of the partial sum in bytes."""
        return math.prod(self.parts[0].shape.as_list()) * self.parts[0].dtype.size

    def shares_with(self, other: _PartialSum) -> bool:
        """Whether one collective of the current graph can reduce both sums."""
        ours, theirs = self.parts[0], other.parts[0]
        is_alike = type(self) is type(other) and ours.dtype == theirs.dtype
        # Sums inside and outside of a loop's body cannot share a collective.
        is_here = ours.graph is theirs.graph is tf.compat.v1.get_default_graph()
        return is_alike and is_here and self.mesh_axes == other.mesh_axes

    def flat(self) -> tf.Tensor:
        """Returns the partial sum as [..., elements]; sums are concatenated along the last axis."""
        return tf.reshape(self.addend, [-1])

    def reduce(self, addend: tf.Tensor, names: list[str]) -> tf.Tensor:
        """Runs the collective on this partial sum, or on several in one tensor."""
        raise NotImplementedError

    def set_reduced(self, value: tf.Tensor) -> None:
        """Sets the result, given in any shape."""
        self._reduced = LaidOutTensor([reshaped(value, self.addend.shape)])

    def to_laid_out_tensor(self) -> LaidOutTensor:
        """Returns the result; reduces the sum first if necessary."""
        if self._reduced is None:
            self.sums.reduce(self)
        assert self._reduced is not None
        return self._reduced


@dataclass(eq=False)
class DeferredSum(_PartialSum, upstream.LazyAllreduceSum):
    """A sum that is all-reduced. Operations may add the partial sums first.

    Attributes:
      cut: with `exact_sums`, the name of the summed dimension, and the number of addends of the
        whole sum.
    """

    cut: tuple[str, int] | None = None
    add_counter_fn = None  # mesh-tensorflow reads this attribute, and `mesh_impl`.

    @property
    def mesh_impl(self) -> SpmdMeshImpl:
        """The mesh implementation."""
        return self.sums.mesh_impl

    @property
    def laid_out_input(self) -> LaidOutTensor:
        """The partial sum, under mesh-tensorflow's name for it."""
        return LaidOutTensor([self.addend])

    @property
    def slice_shape(self) -> list[int]:
        """The shape of the slice."""
        return self.parts[0].shape.as_list()

    def reduce(self, addend: tf.Tensor, names: list[str]) -> tf.Tensor:
        """All-reduces. Small 16-bit sums are sent and added in float32.

        The bytes double, but the time of a small message is almost only latency.
        """
        dtype = addend.dtype
        if dtype in (tf.bfloat16, tf.float16) and self.num_bytes <= SMALL:
            addend = tf.cast(addend, tf.float32)
        return tf.cast(self.mesh_impl.collectives.sum(addend, self.mesh_axes, names), dtype)


@dataclass(eq=False)
class Scatter(_PartialSum):
    """A sum that is reduce-scattered: the axes of the sum split the result.

    Its addend has one part for each receiver: it is indexed by the receiver's coordinates on
    `mesh_axes`, then by the dimensions of a part.

    Attributes:
      slice_shape: shape of the processor's slice of the result.
      finish: converts the processor's part of the sum to its slice.
    """

    slice_shape: list[int]
    finish: Callable[[tf.Tensor], tf.Tensor]

    def flat(self) -> tf.Tensor:
        """See the base class."""
        return tf.reshape(self.addend, [*self.addend.shape[: len(self.mesh_axes)], -1])

    def reduce(self, addend: tf.Tensor, names: list[str]) -> tf.Tensor:
        """Reduce-scatters."""
        return self.sums.mesh_impl.collectives.reduce_parts(addend, self.mesh_axes, names)

    def set_reduced(self, value: tf.Tensor) -> None:
        """See the base class."""
        self._reduced = LaidOutTensor([self.finish(value)])


class DeferredSums:
    """The deferred sums of one lowering; small sums wait here to share a collective."""

    def __init__(self, mesh_impl: SpmdMeshImpl) -> None:
        self.mesh_impl = mesh_impl
        self._waiting: list[_PartialSum] = []

    def start(self, needed: _PartialSum) -> None:
        """Reduces a needed sum if it is large or fills a collective; otherwise it waits."""
        if needed.num_bytes <= SMALL:
            self._waiting.append(needed)
            if sum(each.num_bytes for each in self._together(needed)) < BUCKET:
                return
        # Waiting would not make the collective cheaper. Started now, it overlaps with later
        # operations.
        self.reduce(needed)

    def reduce(self, required: _PartialSum) -> None:
        """Reduces a sum, and the waiting sums that fit into its collective."""
        group = self._together(required)
        self._waiting = [each for each in self._waiting if each not in group]
        names = [each.name for each in group]
        if len(group) == 1:
            required.set_reduced(required.reduce(required.addend, names))
            return
        flat = [each.flat() for each in group]
        total = required.reduce(tf.concat(flat, axis=-1), names)
        for each, value in zip(group, tf.split(total, [x.shape[-1] for x in flat]), strict=True):
            each.set_reduced(value)

    def _together(self, required: _PartialSum) -> list[_PartialSum]:
        """Returns a sum and, if it is small, the waiting sums that can share its collective."""
        if required.num_bytes > SMALL:
            return [required]
        others = (each for each in self._waiting if each is not required)
        return [required, *(each for each in others if each.shares_with(required))]
