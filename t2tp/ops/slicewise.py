"""Slicing, and TensorFlow functions on slices: checks arguments, then calls mesh-tensorflow."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from t2tp import upstream


def unstack(
    x: upstream.Tensor, dim: upstream.Dimension, name: str | None = None
) -> list[upstream.Tensor]:
    """Unstacks `x` into `dim.size` tensors along `dim`, a dimension that no layout may split.

    Raises:
      ValueError: `x` has no `dim`.
    """
    if dim not in x.shape.dims:
        raise ValueError(f"unstack: {x.name!r} {x.shape} has no dimension {dim}.")
    return upstream.unstack(x, dim, name)


def slicewise(
    tf_fn: Callable[..., tf.Tensor | tuple[tf.Tensor, ...]],
    xs: list[upstream.Tensor],
    output_shape: upstream.Shape | list[upstream.Shape] | None = None,
    output_dtype: tf.DType | list[tf.DType] | None = None,
    splittable_dims: Sequence[upstream.Dimension] | None = None,
    grad_function: Callable | int | None = None,
    name: str | None = None,
) -> upstream.Tensor | tuple[upstream.Tensor, ...]:
    """Applies a TensorFlow function to each processor's slices.

    Args:
      tf_fn: maps slices of `xs` to a slice of the output, or to a tuple of slices.
      xs: the inputs.
      output_shape: shape of the output, by default the first input's; a list of shapes for several
        outputs.
      output_dtype: dtype of the output, by default the first input's; a list of dtypes for several
        outputs.
      splittable_dims: the dimensions that may be split without changing the function's result.
      grad_function: maps the operation and the gradients w.r.t. its outputs to the gradients w.r.t.
        its inputs. By default TensorFlow differentiates `tf_fn`; 0 for no gradient.
      name: operation name.
    """
    return upstream.slicewise(
        tf_fn, xs, output_shape, output_dtype, splittable_dims or [], grad_function, name
    )


def mtf_slice(
    x: upstream.Tensor, begin: int, size: int, slice_dim_name: str, name: str | None = None
) -> upstream.Tensor:
    """Returns `size` elements of `x` from `begin` on, along a dimension that no layout may split.

    Raises:
      ValueError: `x` has no such dimension, or the range is out of bounds.
    """
    if slice_dim_name not in x.shape.dimension_names:
        raise ValueError(f"slice: {x.name!r} {x.shape} has no dimension {slice_dim_name!r}.")
    available = x.shape.get_dim_by_name(slice_dim_name).size
    if begin < 0 or size < 0 or begin + size > available:
        raise ValueError(
            f"slice: elements {begin} to {begin + size} of {slice_dim_name!r}, which has"
            f" {available} in {x.name!r}: the range must lie within 0 to {available}."
        )
    return upstream.slice(x, begin, size, slice_dim_name, name)
