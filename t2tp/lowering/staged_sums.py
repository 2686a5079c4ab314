"""Sums over dimensions of a slice, as accurate with XLA as with TensorFlow's kernels.

On CPUs, XLA adds the elements of a sum over several dimensions one after the other. With two
million elements, the last ones are added to a number so large that four digits are lost. A sum
over one dimension is computed in stages if it has more than 32 elements, but XLA first stores these
elements. This module divides sums that XLA compiles for CPUs into stages of at most 32 elements.
XLA then fuses the first stage with the computation of the elements, and does not store them.

16-bit floats are summed in float32. A sum of ones would stop at 2048 in float16, and at 256 in
bfloat16.
"""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

# A graph collection that marks the graphs whose sums are staged. Loop bodies inherit it.
_IN_STAGES = "t2tp_sums_in_stages"

_STAGE = 32  # Max number of elements that XLA adds one by one, without storing them first.
_SHORTEST_STAGE = 8  # A shorter stage is not worth another pass.


def sum_in_stages() -> None:
    """Divides long sums into stages from now on, in the current graph and graphs inside it.

    Call it in graphs that XLA compiles for CPUs.
    """
    tf1.add_to_collection(_IN_STAGES, True)


def reduce_sum(
    x: tf.Tensor, axes: int | Sequence[int] | None = None, keepdims: bool = False
) -> tf.Tensor:
    """Sums `x`, of static shape, over `axes` (by default all), in its dtype."""
    return _reduced(x, axes, keepdims, tf.reduce_sum)


def reduce_mean(
    x: tf.Tensor, axes: int | Sequence[int] | None = None, keepdims: bool = False
) -> tf.Tensor:
    """Averages `x`, of static shape, over `axes` (by default all), in its dtype."""
    return _reduced(x, axes, keepdims, tf.reduce_mean)


def _reduced(
    x: tf.Tensor, axes: int | Sequence[int] | None, keepdims: bool, kernel: Callable
) -> tf.Tensor:
    """Applies `kernel`, TensorFlow's sum or mean, to `x`."""
    summed = _axes(x, axes)
    count = math.prod(x.shape[axis] for axis in summed)
    wide = tf.cast(x, tf.float32) if x.dtype in (tf.bfloat16, tf.float16) else x
    if count <= _STAGE or not tf1.get_collection(_IN_STAGES):
        return tf.cast(kernel(wide, summed, keepdims=keepdims), x.dtype)
    result = _staged(wide, summed)
    if kernel is tf.reduce_mean:
        result /= count
    if keepdims:
        sizes = [1 if axis in summed else n for axis, n in enumerate(x.shape)]
        result = tf.reshape(result, sizes)
    return tf.cast(result, x.dtype)


def _axes(x: tf.Tensor, axes: int | Sequence[int] | None) -> list[int]:
    if axes is None:
        return list(range(x.shape.rank))
    return sorted(axis % x.shape.rank for axis in ([axes] if isinstance(axes, int) else axes))


def _staged(x: tf.Tensor, summed: list[int]) -> tf.Tensor:
    """Sums over dimensions in stages; the result lacks these dimensions."""
    kept = [n for axis, n in enumerate(x.shape) if axis not in summed]
    sizes, is_summed = _runs(x.shape.as_list(), summed)
    x = tf.reshape(x, sizes)
    while math.prod(n for n, which in zip(sizes, is_summed, strict=True) if which) > _STAGE:
        axis = max((n, axis) for axis, n in enumerate(sizes) if is_summed[axis])[1]
        length = max(n for n in range(1, _STAGE + 1) if sizes[axis] % n == 0)
        if length < _SHORTEST_STAGE:
            break
        x = _stage(x, axis, length)
        sizes[axis] //= length
    return tf.reshape(tf.reduce_sum(x, [i for i, which in enumerate(is_summed) if which]), kept)


def _stage(x: tf.Tensor, axis: int, length: int) -> tf.Tensor:
    """Sums groups of `length` elements along a dimension."""
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    x = tf.reduce_sum(tf.reshape(x, [*before, size // length, length, *after]), axis + 1)
    # Without the barrier, XLA would merge this sum with the next stage.
    return gen_xla_ops.xla_optimization_barrier(input=[x])[0]


def _runs(sizes: list[int], summed: list[int]) -> tuple[list[int], list[bool]]:
    """Merges neighbouring dimensions that are all summed or all kept; returns which are summed."""
    runs: list[int] = []
    is_summed: list[bool] = []
    for axis, size in enumerate(sizes):
        if is_summed and is_summed[-1] == (axis in summed):
            runs[-1] *= size
        else:
            runs.append(size)
            is_summed.append(axis in summed)
    return runs, is_summed
