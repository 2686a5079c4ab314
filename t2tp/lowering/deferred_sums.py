"""Deferred all-reduces: a sum is reduced when its value is needed; small sums share a collective.

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
gradients of all norms, are collected until one of them is read or they fill a collective.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.linear_operations import Users, can_defer_past
from t2tp.lowering.mesh_impl import LaidOutTensor, SpmdMeshImpl
from t2tp.lowering.operation import signature_of
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
class DeferredSum(upstream.LazyAllreduceSum):
    """A processor's partial sum over mesh axes, reduced at the latest when its value is read.

    Attributes:
      reductions: the deferred sums of the lowering.
      name: name of the summed tensor.
      parts: this processor's addends, in order. Without `exact_sums` there is one.
      mesh_axes: the mesh axes to sum over.
      cut: with `exact_sums`, the name of the summed dimension, and the number of addends of the
        whole sum.
    """

    reductions: Reductions
    name: str
    parts: Sequence[tf.Tensor]
    mesh_axes: list[int]
    cut: tuple[str, int] | None = None
    _reduced: LaidOutTensor | None = None
    add_counter_fn = None  # mesh-tensorflow reads this attribute, and `mesh_impl`.

    @property
    def mesh_impl(self) -> SpmdMeshImpl:
        """The mesh implementation."""
        return self.reductions.mesh_impl

    @property
    def laid_out_input(self) -> LaidOutTensor:
        """The partial sum, under mesh-tensorflow's name for it."""
        return LaidOutTensor([self.addend])

    @property
    def slice_shape(self) -> list[int]:
        """The shape of the slice."""
        return self.parts[0].shape.as_list()

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
        """The size of the slice in bytes."""
        return math.prod(self.slice_shape) * self.parts[0].dtype.size

    def set_reduced(self, value: tf.Tensor) -> None:
        """Sets the sum's value."""
        self._reduced = LaidOutTensor([value])

    def to_laid_out_tensor(self) -> LaidOutTensor:
        """Returns the sum's value; reduces it first if necessary."""
        if self._reduced is None:
            self.reductions.reduce(self)
        assert self._reduced is not None
        return self._reduced


class Reductions:
    """The deferred sums of one lowering; small sums wait here to share a collective."""

    def __init__(self, mesh_impl: SpmdMeshImpl) -> None:
        self.mesh_impl = mesh_impl
        self._waiting: list[DeferredSum] = []

    def defer(
        self,
        name: str,
        parts: Sequence[tf.Tensor],
        mesh_axes: list[int],
        cut: tuple[str, int] | None,
        is_needed: bool,
    ) -> DeferredSum:
        """Defers a sum; for the arguments see `DeferredSum`.

        `is_needed` says whether some operation needs the value. A needed sum may be reduced before
        it is read: at once if it is large, otherwise together with other small sums.
        """
        axes = self.mesh_impl.layout.axes.separate(mesh_axes)
        deferred = DeferredSum(self, name, parts, axes, cut)
        if axes and is_needed:
            self._schedule(deferred)
        return deferred

    def _schedule(self, deferred: DeferredSum) -> None:
        """Reduces a needed sum if it is large or fills a collective; otherwise it waits."""
        if deferred.num_bytes <= SMALL:
            self._waiting.append(deferred)
            if sum(each.num_bytes for each in self._coalesced(deferred)) < BUCKET:
                return
        # Waiting would not make the collective cheaper. Started now, it overlaps with later
        # operations.
        self.reduce(deferred)

    def reduce(self, required: DeferredSum) -> None:
        """Reduces a sum, and the waiting sums that fit into its collective."""
        group = self._coalesced(required)
        self._waiting = [s for s in self._waiting if s not in group]
        names = [s.name for s in group]
        if len(group) == 1:
            required.set_reduced(self._allreduce(required.addend, required, names))
            return
        sizes = [math.prod(s.addend.shape.as_list()) for s in group]
        flat = tf.concat([tf.reshape(s.addend, [-1]) for s in group], axis=0)
        values = tf.split(self._allreduce(flat, required, names), sizes)
        for deferred, value in zip(group, values, strict=True):
            deferred.set_reduced(tf.reshape(value, deferred.addend.shape))

    def _allreduce(self, addend: tf.Tensor, required: DeferredSum, names: list[str]) -> tf.Tensor:
        """All-reduces over the axes of `required`.

        Small 16-bit sums are sent and added in float32. The bytes double, but the time of a small
        message is almost only latency.
        """
        dtype = addend.dtype
        is_narrow = dtype in (tf.bfloat16, tf.float16)
        if is_narrow and required.num_bytes <= SMALL:
            addend = tf.cast(addend, tf.float32)
        total = self.mesh_impl.collectives.sum(addend, required.mesh_axes, names)
        return tf.cast(total, dtype)

    def _coalesced(self, required: DeferredSum) -> list[DeferredSum]:
        """Returns a sum and, if it is small, the waiting sums that can share its collective."""
        if required.num_bytes > SMALL:
            return [required]
        graph = tf.compat.v1.get_default_graph()
        return [
            required,
            *(
                other
                for other in self._waiting
                if other is not required
                and other.mesh_axes == required.mesh_axes
                and other.addend.dtype == required.addend.dtype
                # Sums inside and outside of a loop's body cannot share a collective.
                and other.parts[0].graph is required.parts[0].graph is graph
            ),
        ]
