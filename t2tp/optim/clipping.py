"""Gradient clipping, and norms over the mesh."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.lowering.lowering import Lowering
from t2tp.lowering.operation import Operation
from t2tp.optim.optimizer import mesh_axes


def clip(
    grads: Sequence[mtf.Tensor], divisor: mtf.Tensor | None, hparams: HParams
) -> tuple[list[mtf.Tensor], mtf.Tensor]:
    """Divides gradients and clips them by `clip_grad_norm` or `clip_grad_value`.

    Args:
      grads: float32.
      divisor: a float32 scalar to divide the gradients by; None: 1.
      hparams: at most one of the two may be above 0.

    Returns:
      the gradients; and their norm before clipping, a float32 scalar.

    Raises:
      ValueError: both are above 0.
    """
    limit, largest = hparams.clip_grad_norm, hparams.clip_grad_value
    if limit and largest:
        raise ValueError(
            f"clip_grad_norm is {limit} and clip_grad_value {largest}: set one of them to 0"
        )
    norm = global_norm(grads)
    if divisor is not None:
        norm /= divisor
    if limit:
        factor = mtf.slicewise(
            lambda n: limit / tf.maximum(n, limit), [norm], splittable_dims=[], name="clip"
        )
        grads = _times(grads, factor if divisor is None else factor / divisor)
    elif divisor is not None:
        grads = _times(grads, mtf.reciprocal(divisor))
    if largest:
        grads = [
            mtf.cwise(lambda g: tf.clip_by_value(g, -largest, largest), [grad], name="clip")
            for grad in grads
        ]
    return list(grads), norm


def global_norm(tensors: Sequence[mtf.Tensor]) -> mtf.Tensor:
    """Computes the L2 norm of all elements of all tensors: a float32 scalar."""
    return mtf.sqrt(SumOfSquaresOperation(list(tensors)).outputs[0])


def _times(grads: Sequence[mtf.Tensor], factor: mtf.Tensor) -> list[mtf.Tensor]:
    return [grad * factor for grad in grads]


class SumOfSquaresOperation(Operation):
    """Computes the sum of squares of all elements of its inputs, a float32 scalar.

    It costs one all-reduce per set of mesh axes that tensors are split over, where `mtf.reduce_sum`
    would cost one per tensor.
    """

    def __init__(self, tensors: list[mtf.Tensor]) -> None:
        super().__init__(tensors, name="sum_of_squares")
        self._outputs = [mtf.Tensor(self, mtf.Shape([]), tf.float32)]

    def lower(self, lowering: Lowering) -> None:
        slices = [(x.shape, lowering.slice(x)) for x in self.inputs]
        lowering.set_slice(self.outputs[0], sum_of_squares(lowering, self, slices))


def sum_of_squares(
    lowering: Lowering, op: mtf.Operation, slices: Sequence[tuple[mtf.Shape, tf.Tensor]]
) -> tf.Tensor:
    """Sums the squares of tensors, given the shape and the processor's slice of each."""
    by_axes: dict[tuple[int, ...], list[tf.Tensor]] = {}
    for shape, part in slices:
        half = tf.nn.l2_loss(tf.cast(part, tf.float32))
        by_axes.setdefault(tuple(mesh_axes(lowering, op, shape)), []).append(half)
    collectives = lowering.mesh_impl(op).collectives
    sums = [
        collectives.allreduce(2.0 * tf.add_n(halves), axes, "Add")
        for axes, halves in by_axes.items()
    ]
    return tf.add_n(sums)
