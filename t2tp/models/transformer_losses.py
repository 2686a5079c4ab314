"""Losses shared by all transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.layers.mixture_of_experts import ExpertSums
from t2tp.models import losses
from t2tp.models.model import LossOutput


def predicted(
    hparams: HParams,
    logits: mtf.Tensor,
    targets: mtf.Tensor,
    weights: mtf.Tensor,
    vocab: mtf.Dimension,
    training: bool,
) -> LossOutput:
    """Calls `losses.predicted` with `label_smoothing` and `z_loss` from the hparams."""
    return losses.predicted(
        logits,
        targets,
        weights,
        vocab,
        training,
        label_smoothing=hparams.label_smoothing,
        z_loss=hparams.z_loss,
    )


def with_experts(
    out: LossOutput, hparams: HParams, counted: Sequence[ExpertSums], training: bool
) -> LossOutput:
    """Adds the experts' losses in training, and their statistics to the metrics.

    The metrics are `expert_choices`, the number of token-expert assignments requested, and
    `expert_dropped`, the number that exceeded the capacity; the fraction dropped and the
    load-balancing loss are scalar summaries. Without experts `out` is unchanged.
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
    return losses.with_metrics(dataclasses.replace(out, loss=loss), metrics)


def weights_of(segments: mtf.Tensor) -> mtf.Tensor:
    """Returns 1.0 for tokens and 0.0 for padding."""
    return mtf.cast(mtf.not_equal(segments, 0), tf.float32)


def _sum(xs: list[mtf.Tensor]) -> mtf.Tensor:
    return sum(xs[1:], xs[0])
