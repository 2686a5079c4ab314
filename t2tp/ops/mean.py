"""Means that do not overflow where the sum would."""

from __future__ import annotations

from t2tp import upstream as mtf
from t2tp.ops.cast import at_least_float32, cast


def reduce_mean(
    x: mtf.Tensor,
    disable_positional_args: None = None,
    output_shape: mtf.Shape | None = None,
    reduced_dim: mtf.Dimension | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """The mean along some dimensions, computed in float32 at least: the sum of a float16 tensor may
    be infinite where its mean is not.

    Args:
      x: any float or complex dtype.
      disable_positional_args: leave it None; what follows is given by name.
      output_shape: the dimensions that stay; or
      reduced_dim: the one that goes. Without either, all go.
      name: of the operation.

    Raises:
      ValueError: `x` is of integers, or nothing is in it to take the mean of.
    """
    if not (x.dtype.is_floating or x.dtype.is_complex):
        raise ValueError(
            f"reduce_mean: {x.name!r} is {x.dtype.name}, whose mean is no {x.dtype.name}: cast it"
            " first, mtf.cast(x, tf.float32)."
        )
    if x.shape.size == 0:
        raise ValueError(f"reduce_mean: {x.name!r} {x.shape} is empty, and has no mean.")
    mean = mtf.reduce_mean(
        at_least_float32(x),
        disable_positional_args,
        output_shape=output_shape,
        reduced_dim=reduced_dim,
        name=name,
    )
    return cast(mean, x.dtype)
