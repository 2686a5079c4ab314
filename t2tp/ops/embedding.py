"""Embedding look-up in a table whose vocabulary may be split over the mesh."""

from __future__ import annotations

import math

import tensorflow as tf

from t2tp import mtf
from t2tp.mesh.lowering import Lowering
from t2tp.mesh.spmd import SpmdMeshImpl


def embedding_lookup(table: mtf.Tensor, ids: mtf.Tensor, vocab_dim: mtf.Dimension) -> mtf.Tensor:
    """Rows of a table.

    Where the vocabulary is split, each processor looks up the ids that it holds and the rest comes
    by one reduction; the cost is that of the rows, not of the vocabulary (mesh-tensorflow's
    `gather` multiplies by a one-hot matrix).

    Args:
      table: [vocab, ...].
      ids: [batch...], integers in [0, vocab).
      vocab_dim: first dimension of the table.

    Returns:
      [batch..., ...] in the table's dtype.
    """
    if table.shape.dims[0] != vocab_dim:
        table = mtf.transpose(table, mtf.Shape([vocab_dim]) + (table.shape - vocab_dim))
    return EmbeddingOperation(table, ids).outputs[0]


class EmbeddingOperation(mtf.Operation):
    """Inputs table [vocab, d...] and ids [batch...]; output [batch..., d...]."""

    def __init__(self, table: mtf.Tensor, ids: mtf.Tensor) -> None:
        super().__init__([table, ids], name="embedding")
        self._vocab_dim = table.shape.dims[0]
        shape = ids.shape + (table.shape - self._vocab_dim)
        self._outputs = [mtf.Tensor(self, shape, table.dtype)]

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
        table, ids = self.inputs
        return [EmbeddingGradOperation(ids, grad_ys[0], table.shape).outputs[0], None]

    def lower(self, lowering: Lowering) -> None:
        table, ids = lowering.slice(self.inputs[0]), lowering.slice(self.inputs[1])
        mesh_impl = lowering.mesh_impl(self)
        if mesh_impl.tensor_dimension_to_mesh_axis(self._vocab_dim) is None:
            rows = tf.gather(table, ids)
        else:
            local, is_here = _local_ids(mesh_impl, self._vocab_dim, ids, table.shape[0])
            mask = tf.reshape(
                tf.cast(is_here, table.dtype), [*ids.shape, *[1] * (table.shape.rank - 1)]
            )
            rows = tf.gather(table, tf.where(is_here, local, 0)) * mask
        lowering.set_partial_sum(self.outputs[0], rows, [self._vocab_dim])


class EmbeddingGradOperation(mtf.Operation):
    """Inputs ids [batch...] and dy [batch..., d...]; output the gradient by the table [vocab,
    d...]."""

    def __init__(self, ids: mtf.Tensor, dy: mtf.Tensor, table_shape: mtf.Shape) -> None:
        super().__init__([ids, dy], name="embedding_grad")
        self._outputs = [mtf.Tensor(self, table_shape, dy.dtype)]

    def lower(self, lowering: Lowering) -> None:
        ids, dy = lowering.slice(self.inputs[0]), lowering.slice(self.inputs[1])
        mesh_impl = lowering.mesh_impl(self)
        table_shape = self.outputs[0].shape
        slice_shape = mesh_impl.slice_shape(table_shape)
        local, is_here = _local_ids(mesh_impl, table_shape.dims[0], ids, slice_shape[0])
        # A negative segment is dropped.
        d_table = tf.math.unsorted_segment_sum(
            tf.reshape(dy, [-1, math.prod(slice_shape[1:])]),
            tf.reshape(tf.where(is_here, local, -1), [-1]),
            slice_shape[0],
        )
        lowering.set_partial_sum(
            self.outputs[0], tf.reshape(d_table, slice_shape), self.inputs[0].shape.dims
        )


def _local_ids(
    mesh_impl: SpmdMeshImpl, vocab_dim: mtf.Dimension, ids: tf.Tensor, vocab_slice: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Ids counted from the beginning of this processor's slice, and whether they are in it."""
    axis = mesh_impl.tensor_dimension_to_mesh_axis(vocab_dim)
    if axis is not None:
        offset = mesh_impl.collectives.coordinate(axis) * vocab_slice
        ids = ids - tf.cast(offset, ids.dtype)
    return ids, tf.logical_and(ids >= 0, ids < vocab_slice)
