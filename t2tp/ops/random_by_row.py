"""Random numbers that depend on the row's index only.

Other random tensors vary with the step and with a row's index in the batch, as training needs. In
an evaluation they must not: an example gets the same numbers at any batch size, mesh, step
and seed of the run.
"""

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering import random
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation


def random_by_row(
    rows: upstream.Tensor, shape: upstream.Shape, purpose: str, maxval: int | None = None
) -> upstream.Tensor:
    """Returns uniform random numbers, a function of purpose, row index and position in the row.

    Args:
      rows: integers [batch], the index of each row, such as of the example in its split.
      shape: [batch, ...], of the result.
      purpose: each purpose gets different numbers.
      maxval: exclusive upper bound of integers; None: floats.

    Returns:
      int32 in [0, maxval), or float32 in [0, 1), of `shape`.

    Raises:
      ValueError: `shape` does not begin with the dimensions of `rows`, or these are not integers.
    """
    leading = shape.dims[: rows.shape.ndims]
    if leading != rows.shape.dims or not rows.dtype.is_integer:
        raise ValueError(
            f"random_by_row: rows must be integers of the first dimensions of {shape}, not"
            f" {rows.dtype.name} {rows.shape}."
        )
    return RandomByRowOperation(rows, shape, purpose, maxval).outputs[0]


class RandomByRowOperation(Operation):
    """Input: rows [batch]. Output: [batch, ...]."""

    cost_kind = "random"
    accepts_padding = True

    def __init__(
        self, rows: upstream.Tensor, shape: upstream.Shape, purpose: str, maxval: int | None
    ) -> None:
        super().__init__([rows], name="random_by_row")
        self._purpose = purpose
        self._maxval = maxval
        self._outputs = [upstream.Tensor(self, shape, tf.float32 if maxval is None else tf.int32)]

    def lower(self, lowering: Lowering) -> None:
        (rows,), (output,) = self.inputs, self.outputs
        within = upstream.Shape(output.shape.dims[rows.shape.ndims :])
        mesh_impl = lowering.mesh_impl(self)
        index = random.slice_index(
            within.to_integer_list,
            mesh_impl.slice_begin_tensors(within),
            mesh_impl.slice_shape(within),
        )
        keys = random.fold_in(random.make_key("by row", self._purpose), lowering.slice(rows))
        keys = tf.reshape(keys, [*keys.shape, *(1 for _ in within.dims)])
        bits = random.bits(keys, index)
        if self._maxval is None:
            lowering.set_slice(output, random.uniform(bits))
        else:
            below = bits % tf.constant(self._maxval, tf.uint32)
            lowering.set_slice(output, tf.cast(below, tf.int32))
