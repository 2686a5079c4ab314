"""Means that do not overflow when the sum in the input's dtype would."""

from t2tp import upstream
from t2tp.ops.cast import at_least_float32, cast


def reduce_mean(
    x: upstream.Tensor,
    disable_positional_args: None = None,
    output_shape: upstream.Shape | None = None,
    reduced_dim: upstream.Dimension | None = None,
    name: str | None = None,
) -> upstream.Tensor:
    """Computes the mean along some dimensions in at least float32.

    The sum of a float16 tensor may be infinite when its mean is not.

    Args:
      x: any float or complex dtype.
      disable_positional_args: must be None; pass the rest by name.
      output_shape: the dimensions to keep; or
      reduced_dim: the dimension to reduce. By default all.
      name: operation name.

    Raises:
      ValueError: `x` has an integer dtype or is empty.
    """
    if not (x.dtype.is_floating or x.dtype.is_complex):
        raise ValueError(
            f"reduce_mean: {x.name!r} is {x.dtype.name}, whose mean is no {x.dtype.name}: cast it"
            " first, mtf.cast(x, tf.float32)."
        )
    if x.shape.size == 0:
        raise ValueError(f"reduce_mean: {x.name!r} {x.shape} is empty, and has no mean.")
    mean = upstream.reduce_mean(
        at_least_float32(x),
        disable_positional_args,
        output_shape=output_shape,
        reduced_dim=reduced_dim,
        name=name,
    )
    return cast(mean, x.dtype)
