"""From logits to what training minimizes and evaluation counts."""

from __future__ import annotations

import dataclasses

from t2tp import mtf
from t2tp.metrics import correct_in_top_k, symbol_sums
from t2tp.models.model import LossOutput
from t2tp.ops.cross_entropy import softmax_cross_entropy


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
    """The mean loss of the targets, and what is counted of each.

    Label smoothing and z-loss are for training only, and are in the loss; `nll` is without them.

    Args:
      logits: [..., classes].
      targets: integers [...].
      weights: float32 [...]: 1 where there is a target, 0 where there is none.
      classes: the dimension of what may be predicted.
      training: whether it is.
      label_smoothing: see `softmax_cross_entropy`.
      z_loss: likewise.
      top_5: whether evaluation counts the targets among the five most probable.

    Returns:
      the loss, and the sums `nll` and `tokens`; if not training, `correct` and `correct_top_5` too.
    """
    nll = softmax_cross_entropy(logits, targets, classes)
    if training:
        metrics = {"nll": mtf.reduce_sum(nll * weights), "tokens": mtf.reduce_sum(weights)}
    else:
        metrics = symbol_sums(nll, logits, targets, weights, classes)
        if top_5:
            metrics |= correct_in_top_k(logits, targets, weights, classes)
    objective = metrics["nll"]
    if training and (label_smoothing or z_loss):
        smoothed = softmax_cross_entropy(
            logits, targets, classes, z_loss=z_loss, label_smoothing=label_smoothing
        )
        objective = mtf.reduce_sum(smoothed * weights)
    tokens = metrics["tokens"]
    return LossOutput(objective / mtf.maximum(tokens, 1.0), metrics, weight=tokens)


def with_metrics(out: LossOutput, metrics: dict[str, mtf.Tensor]) -> LossOutput:
    """The same, with more sums."""
    return dataclasses.replace(out, metrics={**out.metrics, **metrics})
