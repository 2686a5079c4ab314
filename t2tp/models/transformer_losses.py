"""From logits to what training minimizes and evaluation counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.layers.mixture_of_experts import ExpertSums
from t2tp.metrics import correct_in_top_k, symbol_sums
from t2tp.models.model import LossOutput
from t2tp.ops.cross_entropy import softmax_cross_entropy


def predicted(
    hparams: HParams,
    logits: mtf.Tensor,
    targets: mtf.Tensor,
    weights: mtf.Tensor,
    vocab: mtf.Dimension,
    training: bool,
) -> LossOutput:
    """The mean loss of the targets, and what is counted of each.

    Label smoothing and z-loss are for training only, and are in the loss; `nll` is without them.

    Args:
      hparams: label_smoothing and z_loss.
      logits: [..., vocab].
      targets: integers [...].
      weights: float32 [...]: 1 where there is a target, 0 where there is none.
      vocab: the dimension of the classes.
      training: whether it is.

    Returns:
      the loss, and the sums `nll` and `tokens`; if not training, `correct` and `correct_top_5` too.
    """
    smoothing, z_loss = hparams.label_smoothing, hparams.z_loss
    nll = softmax_cross_entropy(logits, targets, vocab)
    if training:
        metrics = {"nll": mtf.reduce_sum(nll * weights), "tokens": mtf.reduce_sum(weights)}
    else:
        metrics = {
            **symbol_sums(nll, logits, targets, weights, vocab),
            **correct_in_top_k(logits, targets, weights, vocab),
        }
    objective = metrics["nll"]
    if training and (smoothing or z_loss):
        smoothed = softmax_cross_entropy(
            logits, targets, vocab, z_loss=z_loss, label_smoothing=smoothing
        )
        objective = mtf.reduce_sum(smoothed * weights)
    tokens = metrics["tokens"]
    return LossOutput(objective / mtf.maximum(tokens, 1.0), metrics, weight=tokens)


def with_metrics(out: LossOutput, metrics: dict[str, mtf.Tensor]) -> LossOutput:
    """The same, with more sums."""
    return dataclasses.replace(out, metrics={**out.metrics, **metrics})


def with_experts(
    out: LossOutput, hparams: HParams, counted: Sequence[ExpertSums], training: bool
) -> LossOutput:
    """Adds what experts cost to the loss in training, and what they counted to the metrics.

    These are `expert_choices`, how many experts tokens asked for, and `expert_dropped`, how many of
    them had no room; their share, and the load-balancing loss, are shown as scalars. Without
    experts it is `out` as it is.
    """
    if not counted:
        return out
    layers = float(len(counted))
    tokens = [mtf.maximum(c.tokens, 1.0) for c in counted]
    choices, dropped = _sum([c.choices for c in counted]), _sum([c.dropped for c in counted])
    balance = _sum([c.load_balance / n for c, n in zip(counted, tokens, strict=True)]) / layers
    mtf.scalar_summary("experts/dropped_share", dropped / mtf.maximum(choices, 1.0))
    mtf.scalar_summary("experts/load_balance", balance)
    loss = out.loss
    if training:
        z = _sum([c.router_z / n for c, n in zip(counted, tokens, strict=True)]) / layers
        loss += balance * hparams.moe_load_balance_loss + z * hparams.moe_router_z_loss
    metrics = {"expert_choices": choices, "expert_dropped": dropped}
    return with_metrics(dataclasses.replace(out, loss=loss), metrics)


def weights_of(segments: mtf.Tensor) -> mtf.Tensor:
    """1.0 where there is a symbol, 0.0 where there is padding."""
    return mtf.cast(mtf.not_equal(segments, 0), tf.float32)


def _sum(xs: list[mtf.Tensor]) -> mtf.Tensor:
    return sum(xs[1:], xs[0])
