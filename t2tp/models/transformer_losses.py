"""Losses shared by all transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tensorflow as tf

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.layers.mixture_of_experts import ExpertTotals
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
    out: LossOutput, hparams: HParams, experts: ExpertTotals | None, training: bool
) -> LossOutput:
    """Adds the experts' losses in training, and their statistics to the metrics.

    The metrics are `expert_choices`, the number of token-expert assignments requested, and
    `expert_dropped`, the number that exceeded the capacity; the fraction dropped and the
    load-balancing loss are scalar summaries. Without experts `out` is unchanged.
    """
    if experts is None:
        return out
    balance, choices = experts.load_balance / float(experts.layers), experts.choices
    mtf.scalar_summary("experts/dropped_share", experts.dropped / mtf.maximum(choices, 1.0))
    mtf.scalar_summary("experts/load_balance", balance)
    loss = out.loss
    if training:
        z = experts.router_z / float(experts.layers)
        loss += balance * hparams.moe_load_balance_loss + z * hparams.moe_router_z_loss
    metrics = {"expert_choices": choices, "expert_dropped": experts.dropped}
    return losses.with_metrics(dataclasses.replace(out, loss=loss), metrics)


# The feature with the weight of each target, integers [batch, length], of problems in which some
# tokens are only read, such as prompts.
TARGETS_WEIGHTS = "targets_weights"


def weights_of_targets(features: Mapping[str, mtf.Tensor]) -> mtf.Tensor:
    """Returns the weights of targets, float32 [batch, length]: 0 for padding.

    Args:
      features: `targets_segmentation` and, optionally, `targets_weights`.
    """
    weights = weights_of(features["targets_segmentation"])
    if TARGETS_WEIGHTS not in features:
        return weights
    return weights * mtf.cast(features[TARGETS_WEIGHTS], tf.float32)


def weights_of(segments: mtf.Tensor) -> mtf.Tensor:
    """Returns 1.0 for tokens and 0.0 for padding."""
    return mtf.cast(mtf.not_equal(segments, 0), tf.float32)
