"""Random numbers that depend only on the index of an example in its split.

In an evaluation an example must get the same numbers whatever the batch size, the mesh, the step
and the run's seed. Random numbers of a training depend on the step, and on the position in the
batch.
"""

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering import random
from t2tp.ops.slicewise import slicewise


def random_by_row(
    rows: upstream.Tensor, dim: upstream.Dimension, purpose: str, maxval: int | None = None
) -> upstream.Tensor:
    """Returns uniform random numbers that depend on purpose, row index and position in the row.

    Args:
      rows: integers [batch], the index of each row, such as the example's index in its split.
      dim: the dimension of a row.
      purpose: name of the use; each purpose gets different numbers.
      maxval: exclusive upper bound of integers; None for floats.

    Returns:
      int32 in [0, maxval), or float32 in [0, 1), [batch, dim].

    Raises:
      ValueError: `rows` are not integers.
    """
    if not rows.dtype.is_integer:
        raise ValueError(f"random_by_row: rows must be integers, not {rows.dtype.name}.")

    def numbers(rows: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        keys = random.fold_in(random.make_key("by row", purpose), rows)
        bits = random.bits(keys[:, None], tf.cast(places, tf.uint64))
        if maxval is None:
            return random.uniform(bits)
        return tf.cast(bits % tf.constant(maxval, tf.uint32), tf.int32)

    return slicewise(
        numbers,
        [rows, upstream.range(rows.mesh, dim, tf.int32)],
        rows.shape + dim,
        tf.float32 if maxval is None else tf.int32,
        splittable_dims=[*rows.shape.dims, dim],
        grad_function=0,
        name="random_by_row",
    )
