"""Operations with several outputs, of which some may go unused.

mesh-tensorflow cannot differentiate them then: an unused output has no gradient, where it expects
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from t2tp import upstream as mtf


def unstack(x: mtf.Tensor, dim: mtf.Dimension, name: str | None = None) -> list[mtf.Tensor]:
    """The parts of `x` along `dim`, which cannot be split: `dim.size` tensors without it.

    Raises:
      ValueError: `x` has no `dim`.
    """
    if dim not in x.shape.dims:
        raise ValueError(f"unstack: {x.name!r} {x.shape} has no dimension {dim}.")
    return UnstackOperation(x, dim, name).outputs


def slicewise(
    tf_fn: Callable[..., tf.Tensor | tuple[tf.Tensor, ...]],
    xs: list[mtf.Tensor],
    output_shape: mtf.Shape | list[mtf.Shape] | None = None,
    output_dtype: tf.DType | list[tf.DType] | None = None,
    splittable_dims: Sequence[mtf.Dimension] | None = None,
    grad_function: Callable | int | None = None,
    name: str | None = None,
) -> mtf.Tensor | tuple[mtf.Tensor, ...]:
    """Applies a function of TensorFlow's to each slice.

    Args:
      tf_fn: from slices of `xs` to a slice of the output, or to a tuple of them.
      xs: the inputs.
      output_shape: of the output; by default that of the first input. For several outputs, a list.
      output_dtype: likewise. A list says that there are several outputs.
      splittable_dims: the dimensions that may be split without changing what the function means.
      grad_function: from the operation and the gradients by its outputs to those by its inputs; by
        default TensorFlow's own; 0 for no gradient.
      name: of the operation.
    """
    is_tuple = isinstance(output_dtype, list)
    shapes: Any = output_shape if is_tuple else [output_shape]
    dtypes: Any = output_dtype if is_tuple else [output_dtype]
    op = SlicewiseOperation(
        tf_fn,
        xs,
        [mtf.convert_to_shape(shape) or xs[0].shape for shape in shapes],
        [dtype or xs[0].dtype for dtype in dtypes],
        splittable_dims or [],
        grad_function,
        name=name,
    )
    return tuple(op.outputs) if is_tuple else op.outputs[0]


class UnstackOperation(mtf.UnstackOperation):
    """Input x; an output for each place along the dimension."""

    def gradient(self, grad_ys: list[mtf.Tensor | None]) -> list[mtf.Tensor]:
        return super().gradient(_without_gaps(self, grad_ys))


class SlicewiseOperation(mtf.SlicewiseOperation):
    """A function of slices."""

    def gradient(self, grad_ys: list[mtf.Tensor | None]) -> list[mtf.Tensor | None]:
        return super().gradient(_without_gaps(self, grad_ys))


def _without_gaps(op: mtf.Operation, grad_ys: list[mtf.Tensor | None]) -> list[mtf.Tensor]:
    return [
        mtf.zeros_like(y) if dy is None else dy for y, dy in zip(op.outputs, grad_ys, strict=True)
    ]
