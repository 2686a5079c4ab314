"""Losses on pairs of replies: DPO and its relatives.

A row has both replies of a pair as segments of their own: odd segments have chosen replies, even
segments rejected ones. The sums over a reply are sums over its tokens, end token included:

    log p(reply) = sum of log p(token),  h = log p(chosen) - log p_ref(chosen)
                                             - (log p(rejected) - log p_ref(rejected))
    dpo       -log sigmoid(beta * h)              R. Rafailov et al., arXiv:2305.18290, equation 7
    dpo_norm  dpo with means over a reply's tokens in place of sums
    ipo       (h - 1 / (2 beta))^2, with means    M. Azar et al., arXiv:2310.12036, equation 17
    simpo     -log sigmoid(beta * h - gamma), with means and without reference
                                                  Y. Meng et al., arXiv:2405.14734, equation 6
    orpo      -beta * log sigmoid(the log of the ratio of odds), with means and without reference
                                                  J. Hong et al., arXiv:2403.07691, equation 7
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.models.losses import weights_of_targets
from t2tp.models.model import EXAMPLE_INDEX
from t2tp.ops.cross_entropy.operation import softmax_cross_entropy
from t2tp.optim.loss import LossOutput, LossTerm

# Features, float32 [batch, pairs]: the log-probabilities of the replies under the reference model.
REFERENCES = ("reference_chosen", "reference_rejected")

# The losses that compare with the reference.
WITH_REFERENCE = ("dpo", "dpo_norm", "ipo")
_OF_MEANS = ("dpo_norm", "ipo", "simpo", "orpo")
# hparam -> its value if it is not used, and the losses that use it.
_USED_BY: dict[str, tuple[float, tuple[str, ...]]] = {
    "label_smoothing": (0.0, ()),
    "z_loss": (0.0, ()),
    "preference_label_smoothing": (0.0, ("dpo", "dpo_norm", "simpo")),
    "preference_margin": (0.5, ("simpo",)),
}


class ReplySums(NamedTuple):
    """Sums over the tokens of replies, float32 [batch, pairs] each; 0 for an absent pair."""

    chosen: mtf.Tensor
    rejected: mtf.Tensor


def reply_sums(x: mtf.Tensor, features: Mapping[str, mtf.Tensor]) -> ReplySums:
    """Sums `x`, float32 [batch, length], over the learned tokens of each reply."""
    segments = features["targets_segmentation"]
    length, pairs = segments.shape.dims[-1], features[REFERENCES[0]].shape.dims[-1]
    pair = mtf.floordiv(segments - 1, 2)  # Padding has segment 0, so pair -1: in no pair.
    in_pair = mtf.one_hot(pair, pairs, dtype=tf.float32)
    is_chosen = mtf.cast(mtf.equal(mtf.mod(segments, 2), 1), tf.float32)
    x *= weights_of_targets(features)
    # Not an einsum: on GPUs its products may have 10-bit mantissas (TF32).
    return ReplySums(
        mtf.reduce_sum(in_pair * (x * is_chosen), reduced_dim=length),
        mtf.reduce_sum(in_pair * (x * (1.0 - is_chosen)), reduced_dim=length),
    )


def reply_log_probs(logits: mtf.Tensor, features: Mapping[str, mtf.Tensor]) -> ReplySums:
    """Returns the log-probabilities of the replies, from logits [batch, length, vocab]."""
    nll = softmax_cross_entropy(logits, features["targets"], logits.shape.dims[-1])
    return reply_sums(-nll, features)


def preference_loss(
    hparams: HParams, logits: mtf.Tensor, features: Mapping[str, mtf.Tensor]
) -> LossOutput:
    """Computes the mean loss of the pairs, and sums for metrics.

    Args:
      hparams: the hparams `preference_*`.
      logits: [batch, length, vocab].
      features: the features of the problem `preferences`.

    Raises:
      ValueError: an hparam has no effect on the loss.
    """
    kind, beta = hparams.preference_loss, hparams.preference_beta
    _check(hparams)
    log_probs = reply_log_probs(logits, features)
    tokens = reply_sums(weights_of_targets(features), features)
    is_pair = mtf.cast(mtf.greater(tokens.chosen, 0.0), tf.float32)
    references = [
        mtf.cast(features[name], tf.float32) if kind in WITH_REFERENCE else 0.0
        for name in REFERENCES
    ]
    sizes = tokens if kind in _OF_MEANS else (1.0, 1.0)
    sums = [x - ref for x, ref in zip(log_probs, references, strict=True)]
    scores = [
        x / (mtf.maximum(size, 1.0) if kind in _OF_MEANS else size)
        for x, size in zip(sums, sizes, strict=True)
    ]
    losses = _LOSSES[kind](scores[0], scores[1], hparams) * is_pair
    number = mtf.reduce_sum(is_pair)
    terms = {"preference": LossTerm(mtf.reduce_sum(losses), number)}
    # Exact sums need the sums of a microbatch as they are: no operation may read them.
    chosen_nll, chosen_tokens = -log_probs.chosen, mtf.reduce_sum(tokens.chosen)
    if hparams.preference_sft:
        loss = mtf.reduce_sum(chosen_nll * hparams.preference_sft)
        terms["sft"] = LossTerm(loss, chosen_tokens)
    rewards = sums if kind in WITH_REFERENCE else scores
    chosen, rejected = (beta * mtf.stop_gradient(each) for each in rewards)
    preferred = mtf.cast(mtf.greater(chosen, rejected), tf.float32) * is_pair
    metrics = {
        "pairs": number,
        "chosen_rewards": mtf.reduce_sum(chosen * is_pair),
        "rejected_rewards": mtf.reduce_sum(rejected * is_pair),
        "preferred": mtf.reduce_sum(preferred),
        "chosen_log_probs": mtf.reduce_sum(log_probs.chosen),
        "rejected_log_probs": mtf.reduce_sum(log_probs.rejected),
        "nll": mtf.reduce_sum(chosen_nll),
        "tokens": chosen_tokens,
    }
    if kind in WITH_REFERENCE:
        metrics["log_ratios"] = mtf.reduce_sum((sums[0] + sums[1]) * is_pair)
    return LossOutput(terms, {name: mtf.stop_gradient(x) for name, x in metrics.items()})


def _check(hparams: HParams) -> None:
    """Raises ValueError for hparams without effect."""
    kind = hparams.preference_loss
    for name, (neutral, kinds) in _USED_BY.items():
        if hparams.get(name) != neutral and kind not in kinds:
            other = f", or preference_loss={kinds[0]}" if kinds else ""
            raise ValueError(f"preference_loss={kind} has no {name}: set {name}={neutral:g}{other}")


def _sigmoid_loss(logits: mtf.Tensor, hparams: HParams) -> mtf.Tensor:
    """Returns -log sigmoid of logits; a share of the labels is the wrong way round."""
    wrong = hparams.preference_label_smoothing
    loss = (1.0 - wrong) * mtf.softplus(-logits)
    return loss + wrong * mtf.softplus(logits) if wrong else loss


def _dpo(chosen: mtf.Tensor, rejected: mtf.Tensor, hparams: HParams) -> mtf.Tensor:
    return _sigmoid_loss(hparams.preference_beta * (chosen - rejected), hparams)


def _ipo(chosen: mtf.Tensor, rejected: mtf.Tensor, hparams: HParams) -> mtf.Tensor:
    return mtf.square(chosen - rejected - 0.5 / hparams.preference_beta)


def _simpo(chosen: mtf.Tensor, rejected: mtf.Tensor, hparams: HParams) -> mtf.Tensor:
    logits = hparams.preference_beta * (chosen - rejected) - hparams.preference_margin
    return _sigmoid_loss(logits, hparams)


def _orpo(chosen: mtf.Tensor, rejected: mtf.Tensor, hparams: HParams) -> mtf.Tensor:
    # log odds = log p - log(1 - p). A mean of 0 (p = 1) would give log 0.
    odds = [x - mtf.log(1.0 - mtf.exp(mtf.minimum(x, -1e-6))) for x in (chosen, rejected)]
    return hparams.preference_beta * mtf.softplus(odds[1] - odds[0])


_LOSSES: dict[str, Callable[[mtf.Tensor, mtf.Tensor, HParams], mtf.Tensor]] = {
    "dpo": _dpo,
    "dpo_norm": _dpo,
    "ipo": _ipo,
    "simpo": _simpo,
    "orpo": _orpo,
}


def by_row(
    sums: ReplySums, features: Mapping[str, mtf.Tensor], rows: mtf.Dimension
) -> dict[str, mtf.Tensor]:
    """Returns sums as the features `REFERENCES`, float32 [rows, pairs], zeros in absent rows.

    The result is a sum over the batch, so the results of microbatches may be added.
    """
    number = mtf.mod(mtf.cast(features[EXAMPLE_INDEX], tf.int32), rows.size)
    in_row = mtf.one_hot(number, rows, dtype=tf.float32)
    batch = number.shape.dims[0]
    return {
        name: mtf.reduce_sum(in_row * x, reduced_dim=batch)
        for name, x in zip(REFERENCES, sums, strict=True)
    }
