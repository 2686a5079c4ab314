"""Gradient clipping, and norms over the mesh."""

import math
from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.lowering.context import Lowering
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import ALL, Signature

# Bits of a sum of fixed-point numbers: the 63 of an int64, less a margin.
_WORD_BITS = 60


def clip(
    grads: Sequence[mtf.Tensor],
    divisor: mtf.Tensor | None,
    hparams: HParams,
    of_stage: Sequence[int] | None = None,
) -> tuple[list[mtf.Tensor], mtf.Tensor]:
    """Divides gradients and clips them by their global norm, `clip_grad_norm`.

    Args:
      grads: float32.
      divisor: a float32 scalar to divide the gradients by; None: 1.
      hparams: `clip_grad_norm`; 0: no clipping.
      of_stage: a number for each gradient. 0, the default: all pipeline stages share the variable.
        n > 0: each of n stages has its own variable, and therefore its own gradient.

    Returns:
      The clipped gradients; and the norm before clipping, a float32 scalar.
    """
    max_norm = hparams.clip_grad_norm
    norm = global_norm(grads, of_stage)
    if divisor is not None:
        norm /= divisor
    if max_norm:
        factor = mtf.cwise(lambda n: max_norm / tf.maximum(n, max_norm), [norm], name="clip")
        factor = factor if divisor is None else factor / divisor
    elif divisor is not None:
        factor = mtf.reciprocal(divisor)
    else:
        return list(grads), norm
    return [grad * factor for grad in grads], norm


def global_norm(tensors: Sequence[mtf.Tensor], of_stage: Sequence[int] | None = None) -> mtf.Tensor:
    """Computes the L2 norm over all tensors' elements, a float32 scalar.

    `of_stage`: see `clip`.
    """
    return mtf.sqrt(SumOfSquaresOperation(list(tensors), of_stage).outputs[0])


class SumOfSquaresOperation(Operation):
    """Sums the squares of all its inputs' elements; the output is a float32 scalar.

    All tensors that are split over the same mesh axes share one all-reduce.
    """

    signature = Signature(combined=ALL, exact=ALL, pads=True)

    def __init__(self, tensors: list[mtf.Tensor], of_stage: Sequence[int] | None = None) -> None:
        super().__init__(tensors, name="sum_of_squares")
        self._of_stage = of_stage or [0] * len(tensors)
        self._outputs = [mtf.Tensor(self, mtf.Shape([]), tf.float32)]

    def lower(self, lowering: Lowering) -> None:
        mesh_impl = lowering.mesh_impl(self)
        parts = [tf.cast(lowering.masked_slice(x), tf.float32) for x in self.inputs]
        inputs = list(zip(self.inputs, self._of_stage, strict=True))
        axes = [_summed_axes(mesh_impl, x.shape, of_stage) for x, of_stage in inputs]
        if mesh_impl.layout.exact_sums:
            elements = sum(x.shape.size * (of_stage or 1) for x, of_stage in inputs)
            total = _exact_sum_of_squares(mesh_impl, parts, axes, elements)
        else:
            halves = [tf.nn.l2_loss(part) for part in parts]
            total = 2.0 * tf.add_n(_reduced(mesh_impl, halves, axes))
        lowering.set_slice(self.outputs[0], total)


def _summed_axes(mesh_impl: SpmdMeshImpl, shape: mtf.Shape, of_stage: int) -> tuple[int, ...]:
    """Returns the mesh axes over which the elements of a tensor are distributed."""
    axes, stages = mesh_impl.axes_of(shape.dims), mesh_impl.layout.stage_axis
    return (*axes, stages) if of_stage and stages is not None else tuple(axes)


def _reduced(
    mesh_impl: SpmdMeshImpl, addends: Sequence[tf.Tensor], axes: Sequence[tuple[int, ...]]
) -> list[tf.Tensor]:
    """Adds up and all-reduces the addends that have the same axes."""
    by_axes: dict[tuple[int, ...], list[tf.Tensor]] = {}
    for addend, key in zip(addends, axes, strict=True):
        by_axes.setdefault(key, []).append(addend)
    return [
        mesh_impl.collectives.allreduce(tf.add_n(same), key, "Add") for key, same in by_axes.items()
    ]


def _exact_sum_of_squares(
    mesh_impl: SpmdMeshImpl,
    parts: Sequence[tf.Tensor],
    axes: Sequence[tuple[int, ...]],
    elements: int,
) -> tf.Tensor:
    """Sums the squares of tensors in fixed point, so that the order of additions has no effect.

    Each square is divided by a power of two near the largest square. The quotient is stored as two
    words, its high and its low bits, which are summed as int64. A word has 60 bits minus the bits
    of the number of elements, so the sums do not overflow. The relative error of the sum is below
    2**-24 for up to 2**31 elements of any sizes. It grows eightfold with each further doubling of
    the number of elements.
    """
    # The bits of positive floats, read as integers, have the order of the floats, with NaN above
    # infinity.
    bits = [tf.bitcast(tf.reduce_max(tf.abs(x)), tf.int32) for x in parts if 0 not in x.shape]
    everywhere = range(mesh_impl.layout.mesh_shape.ndims)
    highest = mesh_impl.collectives.allreduce(tf.reduce_max(tf.stack(bits)), everywhere, "Max")
    exponent = tf.cast(tf.clip_by_value(highest // (1 << 23) - 127, -120, 120), tf.float64)
    unit = tf.constant(2.0 ** (_WORD_BITS - math.ceil(math.log2(elements))), tf.float64)
    scale = tf.cast(tf.pow(tf.constant(2.0, tf.float64), -exponent), tf.float32)
    sums_of_words = []
    for x in parts:
        # A scaled element is below 2, so a quarter of its square is below 1.
        fixed = tf.square(tf.cast(x * scale, tf.float64)) * (unit / 4)
        high = tf.floor(fixed)
        words = [tf.cast(x, tf.int64) for x in (high, (fixed - high) * unit)]
        sums_of_words.append(tf.stack([tf.reduce_sum(x) for x in words]))
    sums = tf.add_n(_reduced(mesh_impl, sums_of_words, axes))
    high, low = tf.unstack(tf.cast(sums, tf.float64))
    total = (high + low / unit) / (unit / 4)
    total = tf.cast(total * tf.pow(tf.constant(4.0, tf.float64), exponent), tf.float32)
    largest = tf.bitcast(highest, tf.float32)
    return tf.where(tf.math.is_finite(largest), total, largest * largest)
