"""Sums over a batch from which the metrics of an evaluation are computed.

The sums are float32 scalars that ignore rows and positions of weight 0. They are added up over
batches, and a problem divides one total by another. So a metric is computed over the whole split,
on any mesh.
"""

import tensorflow as tf

from t2tp import mtf


def token_sums(
    nll: mtf.Tensor,
    logits: mtf.Tensor,
    targets: mtf.Tensor,
    weights: mtf.Tensor,
    vocab_dim: mtf.Dimension,
) -> dict[str, mtf.Tensor]:
    """Counts targets: tokens, pixel values or classes.

    Args:
      nll: float32 [targets' dims], nats of each target.
      logits: float [targets' dims, vocab].
      targets: integers of any shape.
      weights: float32 [targets' dims]: 1 for targets, 0 for padding.
      vocab_dim: the dimension of the classes.

    Returns:
      nll, tokens (number of targets) and correct (targets that are the most probable class).
    """
    right = _is_right(logits, targets, vocab_dim)
    return {
        "nll": mtf.reduce_sum(nll * weights),
        "tokens": mtf.reduce_sum(weights),
        "correct": mtf.reduce_sum(right * weights),
    }


def correct_in_top_k(
    logits: mtf.Tensor,
    targets: mtf.Tensor,
    weights: mtf.Tensor,
    vocab_dim: mtf.Dimension,
    k: int = 5,
) -> dict[str, mtf.Tensor]:
    """Counts the targets that are among the k most probable classes.

    Arguments as in `token_sums`. A tie counts for the target; NaN logits are wrong.

    Returns:
      correct_top_<k>.
    """
    one_hot = mtf.one_hot(targets, vocab_dim, dtype=logits.dtype)
    logit = mtf.reduce_sum(logits * one_hot, reduced_dim=vocab_dim)
    before = mtf.reduce_sum(_float(mtf.greater(logits, logit)), reduced_dim=vocab_dim)
    is_in = _float(mtf.less(before, float(k))) * _float(mtf.equal(logit, logit))
    return {f"correct_top_{k}": mtf.reduce_sum(is_in * weights)}


def sequence_sums(
    logits: mtf.Tensor,
    targets: mtf.Tensor,
    weights: mtf.Tensor,
    vocab_dim: mtf.Dimension,
    batch_dim: mtf.Dimension,
) -> dict[str, mtf.Tensor]:
    """Counts the rows in which every target is predicted correctly from the targets before it.

    Arguments as in `token_sums`; a row is an index of `batch_dim`.

    Returns:
      sequences (rows that have a target) and correct_sequences.
    """
    wrong = (1.0 - _is_right(logits, targets, vocab_dim)) * weights
    rows = mtf.Shape([batch_dim])
    is_row = _float(mtf.greater(mtf.reduce_sum(weights, output_shape=rows), 0.0))
    is_right = _float(mtf.equal(mtf.reduce_sum(wrong, output_shape=rows), 0.0))
    return {
        "sequences": mtf.reduce_sum(is_row),
        "correct_sequences": mtf.reduce_sum(is_row * is_right),
    }


def positive_sums(
    logits: mtf.Tensor, targets: mtf.Tensor, weights: mtf.Tensor, vocab_dim: mtf.Dimension
) -> dict[str, mtf.Tensor]:
    """Counts targets and predictions of class 1 in binary classification, for F1.

    Arguments as in `token_sums`.

    Returns:
      positives (targets of class 1), predicted_positives, and true_positives (targets of class 1
      that are predicted as class 1).
    """
    predicted = _float(mtf.equal(mtf.argmax(logits, vocab_dim), 1)) * weights
    positive = _float(mtf.equal(targets, 1))
    return {
        "positives": mtf.reduce_sum(positive * weights),
        "predicted_positives": mtf.reduce_sum(predicted),
        "true_positives": mtf.reduce_sum(predicted * positive),
    }


def _is_right(logits: mtf.Tensor, targets: mtf.Tensor, vocab_dim: mtf.Dimension) -> mtf.Tensor:
    return _float(mtf.equal(mtf.argmax(logits, vocab_dim), targets))


def _float(condition: mtf.Tensor) -> mtf.Tensor:
    return mtf.cast(condition, tf.float32)
