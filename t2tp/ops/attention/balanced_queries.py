"""Equal work for all processors in causal attention over a split length.

A query attends to all that is before it, so the processor with the last slice of the length would
compute most of the scores, and the others wait for it. Here each processor gives the second half of
its queries to the one at the other end, and so computes an early and a late half: the head-tail
order of A. Grattafiori et al., "The Llama 3 Herd of Models" (arXiv:2407.21783), section 3.3.2. The
results go back, so that nothing outside of attention knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.ops.attention.blocks import Queries

# The dimension of the length in [batch, heads, length, ...].
_LENGTH = 2


def head_and_tail(place: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns which of the 2 * count halves of slices the processor at a place has dealt to it."""
    return 2 * place, 2 * (count - 1 - place) + 1


class BalancedQueries:
    """The halves of the queries that a processor computes.

    Of n processors, number i computes the first half of its own queries, and the second half of
    those of number n - 1 - i.
    """

    def __init__(self, mesh_impl: SpmdMeshImpl, axis: int, size: int) -> None:
        """Prepares the exchange.

        Args:
          mesh_impl: the processor's.
          axis: the mesh axis that splits the length.
          size: queries of a processor, an even number.
        """
        self._collectives = mesh_impl.collectives
        self._axis = axis
        self._count = mesh_impl.shape[axis].size
        self._half = size // 2

    @property
    def parts(self) -> list[Queries]:
        """The positions of the two halves."""
        place = self._collectives.coordinate(self._axis)
        return [
            Queries(self._half, 2 * self._count, half) for half in head_and_tail(place, self._count)
        ]

    def dealt(self, slices: Sequence[tf.Tensor], dim: int = _LENGTH) -> list[list[tf.Tensor]]:
        """Returns for each half that this processor computes that of each slice of the length."""
        halves = [tf.split(x, 2, dim) for x in slices]
        return [[first for first, _ in halves], self._exchanged([second for _, second in halves])]

    def returned(self, parts: Sequence[Sequence[tf.Tensor]], dim: int = _LENGTH) -> list[tf.Tensor]:
        """Returns the slices of the length, of the halves that processors have computed."""
        first, second = parts
        return [tf.concat(x, dim) for x in zip(first, self._exchanged(second), strict=True)]

    def _exchanged(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Exchanges tensors with the processor at the other end: those of one dtype together."""
        arrived = list(tensors)
        for dtype in dict.fromkeys(x.dtype for x in tensors):
            chosen = [i for i, x in enumerate(tensors) if x.dtype == dtype]
            joint = tf.concat([tf.reshape(tensors[i], [-1]) for i in chosen], 0)
            other = self._collectives.permute(joint, self._axis, [*reversed(range(self._count))])
            sizes = [math.prod(tensors[i].shape) for i in chosen]
            for i, x in zip(chosen, tf.split(other, sizes), strict=True):
                arrived[i] = tf.reshape(x, tensors[i].shape)
        return arrived


class ContiguousQueries:
    """The queries that a processor has are those that it computes."""

    def __init__(self, queries: Queries) -> None:
        """Takes their positions."""
        self.parts = [queries]

    def dealt(self, slices: Sequence[tf.Tensor], dim: int = _LENGTH) -> list[list[tf.Tensor]]:
        """Returns the slices themselves."""
        del dim
        return [list(slices)]

    def returned(self, parts: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Returns the only part."""
        (slices,) = parts
        return list(slices)
