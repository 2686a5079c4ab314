"""Losses and metrics from logits."""

import dataclasses

from t2tp import mtf
from t2tp.metrics import correct_in_top_k, token_sums
from t2tp.ops.cross_entropy.operation import softmax_cross_entropy
from t2tp.optim.loss import LossOutput, LossTerm


def predicted(
    logits: mtf.Tensor,
    targets: mtf.Tensor,
    weights: mtf.Tensor,
    classes: mtf.Dimension,
    training: bool,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    top_5: bool = True,
) -> LossOutput:
    """Computes the mean cross-entropy of the targets, and sums for metrics.

    The loss includes label smoothing and z-loss, in training and evaluation; `nll` does not.

    Args:
      logits: [..., classes].
      targets: integers [...].
      weights: float32 [...]: 1 for a target, 0 for padding.
      classes: the dimension of the classes.
      training: whether to omit the metrics that only evaluation reports.
      label_smoothing: see `softmax_cross_entropy`.
      z_loss: see `softmax_cross_entropy`.
      top_5: whether evaluation counts the targets that are among the five most probable classes.

    Returns:
      the loss, and the sums `nll` and `tokens`; in evaluation, also sums such as `correct` and
      `correct_top_5`.
    """
    nll = softmax_cross_entropy(logits, targets, classes)
    total = sum_nll = mtf.reduce_sum(nll * weights)
    if label_smoothing or z_loss:
        smoothed = softmax_cross_entropy(
            logits, targets, classes, z_loss=z_loss, label_smoothing=label_smoothing
        )
        total = mtf.reduce_sum(smoothed * weights)
    out = from_sums(total, sum_nll, weights)
    if training:
        return out
    metrics = token_sums(nll, logits, targets, weights, classes)
    if top_5:
        metrics |= correct_in_top_k(logits, targets, weights, classes)
    return with_metrics(out, metrics)


def from_sums(total: mtf.Tensor, nll: mtf.Tensor, weights: mtf.Tensor) -> LossOutput:
    """Returns the loss and the training metrics.

    Args:
      total: float32 scalar, the weighted sum of the targets' losses.
      nll: float32 scalar, the weighted sum without label smoothing and z-loss.
      weights: float32 [...], the targets' weights.
    """
    tokens = mtf.reduce_sum(weights)
    return LossOutput({"cross_entropy": LossTerm(total, tokens)}, {"nll": nll, "tokens": tokens})


def with_metrics(out: LossOutput, metrics: dict[str, mtf.Tensor]) -> LossOutput:
    """Returns `out` with additional metrics."""
    return dataclasses.replace(out, metrics={**out.metrics, **metrics})
