"""Losses and metrics from logits; the losses of tokens are shared by all transformers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.layers.embedding import Projection
from t2tp.layers.mixture_of_experts import Totals
from t2tp.metrics import correct_in_top_k, token_sums
from t2tp.ops.cross_entropy.operation import softmax_cross_entropy
from t2tp.ops.cross_entropy.projected import Teacher, is_worth_chunks, projected_cross_entropy
from t2tp.optim.loss import LossOutput, LossTerm

# Feature, integers [batch, length]: the weight of each target. It is 0 for tokens that are only
# read, such as prompts.
TARGETS_WEIGHTS = "targets_weights"


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


def predicted_tokens(
    hparams: HParams,
    projection: Projection,
    targets: mtf.Tensor,
    weights: mtf.Tensor,
    training: bool,
    teacher: Teacher | None = None,
) -> LossOutput:
    """Computes the loss of tokens like `predicted`, with the hparams' options.

    In training, large logits are computed chunk by chunk; see the hparam `loss_chunk`. The metric
    `nll` of a loss with a teacher is the student's.
    """
    options = loss_options(hparams)
    x, vocab, chunk = projection.x, projection.vocab, hparams.loss_chunk
    if teacher is not None and chunk < 0:
        chunk = x.shape.size  # All tokens: the operation alone knows teachers.
    if teacher is not None or (training and (chunk or is_worth_chunks(x, vocab)) and chunk >= 0):
        inputs = x, projection.table, targets, weights, projection.bias
        total, nll = projected_cross_entropy(
            *inputs, soft_cap=projection.soft_cap, chunk=chunk, teacher=teacher, **options
        )
        return from_sums(total, nll, weights)
    return predicted(projection.logits, targets, weights, vocab, training, **options)


def loss_options(hparams: HParams) -> dict[str, Any]:
    """Returns the options of `predicted` that the hparams set."""
    return {"label_smoothing": hparams.label_smoothing, "z_loss": hparams.z_loss}


def with_experts(
    out: LossOutput, hparams: HParams, totals: Totals, segments: Mapping[str, mtf.Tensor]
) -> LossOutput:
    """Adds the experts' losses, and the sums for the metric `expert_dropped_share`.

    The loss of an encoder's experts is averaged over the inputs, the loss of a decoder's experts
    over the targets.

    Args:
      out: the loss without experts.
      hparams: the coefficients `moe_load_balance_loss` and `moe_router_z_loss`, and
        `moe_balance_rate`.
      totals: statistics of each stack; None for a stack without experts.
      segments: an entry for each stack, in the order of `totals`. The key is the prefix of the
        stack's loss terms. The value has the segments of the stack's tokens, integers [batch,
        length] (0: padding).
    """
    stacks = {prefix: t for prefix, t in zip(segments, totals, strict=True) if t is not None}
    if not stacks:
        return out
    layers = sum(t.layers for t in stacks.values())
    terms = dict(out.terms)
    for prefix, each in stacks.items():
        tokens = mtf.reduce_sum(weights_of(segments[prefix]))
        for name, total, coefficient in (
            ("load_balance", each.sums.load_balance, hparams.moe_load_balance_loss),
            ("router_z", each.sums.router_z, hparams.moe_router_z_loss),
        ):
            if coefficient:
                share = mtf.reduce_sum(total * (coefficient / layers))
                terms[f"{prefix}{name}"] = LossTerm(share, tokens)
        if hparams.moe_balance_rate:
            # The term is 0. Its gradient is 0 too, except w.r.t. the routers' `balance`; see
            # `gating.counted_load`.
            excess = each.sums.choices - mtf.stop_gradient(each.sums.choices)
            terms[f"{prefix}balance"] = LossTerm(mtf.reduce_sum(excess), tokens)
    sums = {
        "expert_choices": mtf.add_n([mtf.reduce_sum(t.sums.choices) for t in stacks.values()]),
        "expert_dropped": mtf.add_n([mtf.reduce_sum(t.sums.dropped) for t in stacks.values()]),
    }
    return LossOutput(terms, {**out.metrics, **sums})


def weights_of_targets(features: Mapping[str, mtf.Tensor]) -> mtf.Tensor:
    """Returns the targets' weights, float32 [batch, length]: 0 for padding and read-only tokens."""
    weights = weights_of(features["targets_segmentation"])
    if TARGETS_WEIGHTS not in features:
        return weights
    return weights * mtf.cast(features[TARGETS_WEIGHTS], tf.float32)


def weights_of(segments: mtf.Tensor) -> mtf.Tensor:
    """Returns 1.0 for tokens and 0.0 for padding."""
    return mtf.cast(mtf.not_equal(segments, 0), tf.float32)
