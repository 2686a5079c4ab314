"""Changes the shapes of slices with as few nodes as possible.

Each node of a graph costs time in tracing, in TensorFlow's graph optimization, and in the first run
on each device. A layer reshapes or broadcasts about a hundred tensors.
"""

from collections.abc import Hashable, Sequence

import tensorflow as tf

from t2tp import upstream


def reshaped(x: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
    """Reshapes a tensor (one size may be -1); returns `x` itself if nothing changes."""
    is_same = (
        x.shape.is_fully_defined()
        and len(sizes) == x.shape.rank
        and all(new in (old, -1) for old, new in zip(x.shape, sizes, strict=True))
    )
    return x if is_same else tf.reshape(x, sizes)


def transposed(x: tf.Tensor, order: Sequence[int]) -> tf.Tensor:
    """Permutes the dimensions; returns `x` itself if nothing changes."""
    return x if list(order) == sorted(order) else tf.transpose(x, order)


def arranged(x: tf.Tensor, dims: Sequence[Hashable], wanted: Sequence[Hashable]) -> tf.Tensor:
    """Transposes a tensor from one order of its dimensions to another."""
    return transposed(x, [list(dims).index(dim) for dim in wanted])


def expanded(x: tf.Tensor, dims: upstream.Shape, wanted: upstream.Shape) -> tf.Tensor:
    """Transposes and reshapes a slice so that it broadcasts with slices of shape `wanted`.

    Args:
      x: the slice.
      dims: the named shape of `x`.
      wanted: a shape that has all dimensions of `dims`.

    Returns:
      the slice, with size 1 in each dimension that `dims` lacks, except in leading dimensions.

    Raises:
      ValueError: `wanted` lacks a dimension.
    """
    upstream.ops.verify_no_new_dims([wanted], dims)
    if dims.dims == wanted.dims[wanted.ndims - dims.ndims :]:
        return x
    order = [dims.dims.index(dim) for dim in wanted.dims if dim in dims.dims]
    x = transposed(x, order)
    if dims.ndims == wanted.ndims:
        return x
    known = x.shape.as_list()
    sizes = iter(tf.unstack(tf.shape(x)) if None in known else known)
    first = min(wanted.dims.index(dim) for dim in dims.dims)
    return tf.reshape(x, [next(sizes) if dim in dims.dims else 1 for dim in wanted.dims[first:]])


def resized(x: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
    """Pads each dimension with zeros at its end, or cuts it, to the given size."""
    before = x.shape.as_list()
    if any(n < size for n, size in zip(before, sizes, strict=True)):
        x = tf.pad(x, [(0, max(size - n, 0)) for n, size in zip(before, sizes, strict=True)])
    return x if x.shape.as_list() == list(sizes) else tf.slice(x, [0] * len(before), sizes)
