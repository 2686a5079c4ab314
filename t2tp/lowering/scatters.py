"""Reduce-scatters of small partial sums, several in one collective.

The gradient of a variable that is sharded at rest is reduce-scattered. Latency dominates the cost
of a small collective, so small gradients wait until they fill a bucket, or until one of them is
read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp.lowering.deferred_sums import BUCKET, SMALL
from t2tp.lowering.mesh_impl import LaidOutTensor, SpmdMeshImpl


@dataclass(eq=False)
class Scatter:
    """A reduce-scatter of a processor's partial sum, executed when the slice is read, or earlier.

    Attributes:
      name: name of the summed tensor.
      parts: the partial sum, cut into one part for each receiver: indexed by the receiver's
        coordinates on `axes`, then by the dimensions of a part.
      axes: mesh axes to sum over; the same axes split the result.
      shape: shape of the processor's slice of the result.
      finish: converts the processor's part of the sum to its slice.
    """

    name: str
    parts: tf.Tensor
    axes: Sequence[int]
    shape: Sequence[int]
    finish: Callable[[tf.Tensor], tf.Tensor]
    _scatters: Scatters | None = None
    _result: LaidOutTensor | None = None

    @property
    def num_bytes(self) -> int:
        """The size of the partial sum."""
        return math.prod(self.parts.shape.as_list()) * self.parts.dtype.size

    @property
    def slice_shape(self) -> list[int]:
        """The shape of the slice."""
        return list(self.shape)

    def set_part(self, part: tf.Tensor) -> None:
        """Sets the processor's part of the sum."""
        self._result = LaidOutTensor([self.finish(part)])

    def to_laid_out_tensor(self) -> LaidOutTensor:
        """Returns the slice; reduce-scatters the sum first if necessary."""
        if self._result is None:
            assert self._scatters is not None  # Only deferred reduce-scatters are read.
            self._scatters.execute(self)
        assert self._result is not None
        return self._result


class Scatters:
    """The deferred reduce-scatters of one lowering."""

    def __init__(self, mesh_impl: SpmdMeshImpl) -> None:
        self._mesh_impl = mesh_impl
        self._deferred: list[Scatter] = []

    def accepts(self, scatter: Scatter) -> bool:
        """Whether a reduce-scatter is small enough to share a collective."""
        return scatter.num_bytes <= SMALL

    def defer(self, scatter: Scatter) -> Scatter:
        """Defers a reduce-scatter until its bucket is full, or a sum of the bucket is read."""
        scatter._scatters = self
        self._deferred.append(scatter)
        if sum(each.num_bytes for each in self._together(scatter)) >= BUCKET:
            self.execute(scatter)
        return scatter

    def execute(self, required: Scatter) -> None:
        """Reduce-scatters a sum, together with all deferred ones that may share its collective."""
        scatters = self._together(required)
        self._deferred = [each for each in self._deferred if each not in scatters]
        coordinates = scatters[0].parts.shape.as_list()[: len(scatters[0].axes)]
        reduce_parts = self._mesh_impl.collectives.reduce_parts
        names = [scatter.name for scatter in scatters]
        if len(scatters) == 1:
            required.set_part(reduce_parts(scatters[0].parts, scatters[0].axes, names))
            return
        flat = [tf.reshape(scatter.parts, [*coordinates, -1]) for scatter in scatters]
        own = reduce_parts(tf.concat(flat, axis=-1), scatters[0].axes, names)
        sizes = [x.shape[-1] for x in flat]
        for each, part in zip(scatters, tf.split(own, sizes), strict=True):
            each.set_part(part)

    def _together(self, required: Scatter) -> list[Scatter]:
        """Returns all deferred reduce-scatters that share a collective with `required`."""
        graph = tf.compat.v1.get_default_graph()
        return [
            each
            for each in self._deferred
            if each is required
            or (
                list(each.axes) == list(required.axes)
                and each.parts.dtype == required.parts.dtype
                # A collective cannot join tensors from inside and outside a loop's body.
                and each.parts.graph is required.parts.graph is graph
            )
        ]
