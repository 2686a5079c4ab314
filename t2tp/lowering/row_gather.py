"""Look-up of rows in a table that may be split, and its gradient."""

import math

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.slice_shapes import arranged


class TableRows:
    """The rows of a flat table [batch * dim, rest] that this processor's slice of the ids selects.

    The table is the processor's slice of the weights, transposed. Dimensions shared with the ids
    (batch) are first, then `dim`, then the rest. The ids are flattened to one list.

    Attributes:
      ids: the processor's slice of the ids.
      is_here: whether this processor holds the row, for each id in the list.
      is_valid: whether the id is in range, so that some processor holds the row.
    """

    def __init__(
        self,
        lowering: Lowering,
        weights_shape: upstream.Shape,
        ids: upstream.Tensor,
        dim: upstream.Dimension,
    ) -> None:
        """Finds the rows of a table of shape [..., dim, ...] that `ids`, integers [...], select.

        Dimensions of the ids that `weights_shape` has too are batch dimensions.
        """
        mesh_impl = lowering.mesh_impl(ids)
        batch = [d for d in ids.shape.dims if d in weights_shape.dims]
        rest = [d for d in weights_shape.dims if d != dim and d not in batch]
        table_dims = [*batch, dim, *rest]
        self._dims, self._table_dims = weights_shape.dims, table_dims
        self._sizes = mesh_impl.slice_shape(upstream.Shape(table_dims))
        self._ids_sizes = mesh_impl.slice_shape(ids.shape)
        self._rest_sizes = self._sizes[len(batch) + 1 :]
        self._table_length = math.prod(self._sizes[: len(batch) + 1])
        self.ids = lowering.slice(ids)
        if self.ids.dtype not in (tf.int32, tf.int64):
            self.ids = tf.cast(self.ids, tf.int64)

        (dim_slice,) = mesh_impl.slice_shape(upstream.Shape([dim]))
        (begin,) = mesh_impl.slice_begin_tensors(upstream.Shape([dim]))
        local = self.ids - tf.cast(begin, self.ids.dtype)
        self.is_valid = tf.reshape(tf.logical_and(self.ids >= 0, self.ids < dim.size), [-1])
        is_here = tf.reshape(tf.logical_and(local >= 0, local < dim_slice), [-1])
        # A slice may end in padding. No id may select padding rows.
        self.is_here = (
            tf.logical_and(is_here, self.is_valid) if mesh_impl.layout.is_padded(dim) else is_here
        )
        number = local
        stride = dim_slice
        for d in reversed(batch):
            axis = ids.shape.dims.index(d)
            size = self._ids_sizes[axis]
            along = [size if a == axis else 1 for a in range(ids.shape.ndims)]
            number += tf.reshape(tf.range(size, dtype=self.ids.dtype) * stride, along)
            stride *= size
        self._row = tf.reshape(number, [-1])  # meaningless where `is_here` is false

    def pick(self, weights: tf.Tensor, absent: tf.Tensor) -> tf.Tensor:
        """Returns the rows of this processor's slice of the weights: [ids..., rest...].

        `absent` is the value for rows that this processor does not hold: a scalar, or one per id.
        """
        ordered = arranged(weights, self._dims, self._table_dims)
        table = tf.reshape(ordered, [self._table_length, -1])
        picked = tf.gather(table, tf.where(self.is_here, self._row, 0))
        picked = tf.where(self.is_here[:, None], picked, tf.reshape(absent, [-1, 1]))
        return tf.reshape(picked, [*self._ids_sizes, *self._rest_sizes])

    def add_up(self, rows: tf.Tensor) -> tf.Tensor:
        """Sums rows [ids..., rest...] by id: the gradient of `pick`.

        Ids whose rows this processor does not hold are left out. The sums have the shape of the
        processor's slice of the weights. 16-bit floats are summed in float32, because an id may
        occur thousands of times.
        """
        dtype = rows.dtype
        is_short = dtype.is_floating and dtype.size < 4
        flat = tf.reshape(rows, [math.prod(self._ids_sizes), -1])
        # TensorFlow drops rows whose segment number is negative.
        table = tf.math.unsorted_segment_sum(
            tf.cast(flat, tf.float32 if is_short else dtype),
            tf.where(self.is_here, self._row, -1),
            self._table_length,
        )
        ordered = tf.reshape(tf.cast(table, dtype), self._sizes)
        return arranged(ordered, self._table_dims, self._dims)
