"""Random numbers that depend on which row they are for, and on nothing else.

Other random tensors change with the step and with a row's place in the batch, as training needs it.
What an evaluation draws must not: the same example gets the same numbers whatever the batch size,
the mesh, the step and the seed of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh import random

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering


def random_by_row(
    rows: mtf.Tensor, shape: mtf.Shape, purpose: str, maxval: int | None = None
) -> mtf.Tensor:
    """Uniform random numbers, a function of the purpose, the row's index and the place in the row.

    Args:
      rows: integers [batch], the index of each row: of the example in its split, say.
      shape: [batch, ...], of the result.
      purpose: rows get other numbers for each purpose.
      maxval: of integers, which are below; None: of floats.

    Returns:
      int32 in [0, maxval), or float32 in [0, 1), of `shape`.

    Raises:
      ValueError: `shape` does not begin with the dimensions of `rows`, or these are no integers.
    """
    leading = shape.dims[: rows.shape.ndims]
    if leading != rows.shape.dims or not rows.dtype.is_integer:
        raise ValueError(
            f"random_by_row: rows must be integers of the first dimensions of {shape}, not"
            f" {rows.dtype.name} {rows.shape}."
        )
    return RandomByRowOperation(rows, shape, purpose, maxval).outputs[0]


class RandomByRowOperation(mtf.Operation):
    """Input rows [batch]; output [batch, ...]."""

    def __init__(
        self, rows: mtf.Tensor, shape: mtf.Shape, purpose: str, maxval: int | None
    ) -> None:
        super().__init__([rows], name="random_by_row")
        self._purpose = purpose
        self._maxval = maxval
        self._outputs = [mtf.Tensor(self, shape, tf.float32 if maxval is None else tf.int32)]

    def lower(self, lowering: Lowering) -> None:
        (rows,), (output,) = self.inputs, self.outputs
        within = mtf.Shape(output.shape.dims[rows.shape.ndims :])
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
