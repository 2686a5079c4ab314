"""Approximate BLEU of tokens during training: each is predicted from the true tokens before it.

BLEU (K. Papineni et al., BLEU, ACL 2002, section 2) counts the n-grams of the prediction that are
in the reference, each at most as often as it is there. An n-gram of the prediction that is the
r-th of its kind (from 0) is therefore a match if there are more than r of its kind in the
reference. That compares every pair of positions, so it needs no tables and runs on the mesh.
"""

from __future__ import annotations

import tensorflow as tf

from t2tp import mtf

_MAX_N = 4


def bleu_sums(
    predicted: mtf.Tensor, targets: mtf.Tensor, segmentation: mtf.Tensor, length_dim: mtf.Dimension
) -> dict[str, mtf.Tensor]:
    """Counts the n-grams of one to four tokens, each within its sequence.

    Args:
      predicted: int32 [..., length], the most probable tokens.
      targets: int32 [..., length].
      segmentation: int32 [..., length], the index of the sequence in the row from 1; 0: padding.
      length_dim: the dimension of the positions.

    Returns:
      bleu_matches_<n>, bleu_possible_<n> for n of 1 to 4, bleu_predicted and bleu_wanted (token
      counts).
    """
    other_dim = mtf.Dimension("memory_length", length_dim.size)

    def ahead(x: mtf.Tensor, offset: int) -> mtf.Tensor:
        return mtf.shift(x, -offset, length_dim, wrap=False)

    def other(x: mtf.Tensor) -> mtf.Tensor:
        return mtf.rename_dimension(x, length_dim.name, other_dim.name)

    mesh = predicted.mesh
    is_token = _float(mtf.not_equal(segmentation, 0))
    earlier = _float(
        mtf.less(mtf.range(mesh, other_dim, tf.int32), mtf.range(mesh, length_dim, tf.int32))
    )
    # [..., length, memory_length]: whether the n-grams that begin at two positions are equal.
    same_predicted = same_wanted = _float(mtf.equal(segmentation, other(segmentation)))
    is_complete = is_token
    count = mtf.reduce_sum(is_token)
    sums = {"bleu_predicted": count, "bleu_wanted": count}
    for n in range(1, _MAX_N + 1):
        token = ahead(predicted, n - 1)
        same_predicted *= _float(mtf.equal(token, other(token)))
        same_wanted *= _float(mtf.equal(token, other(ahead(targets, n - 1))))
        is_complete *= _float(mtf.equal(segmentation, ahead(segmentation, n - 1)))
        rank = mtf.reduce_sum(same_predicted * earlier * other(is_complete), reduced_dim=other_dim)
        reference_counts = mtf.reduce_sum(same_wanted * other(is_complete), reduced_dim=other_dim)
        sums[f"bleu_matches_{n}"] = mtf.reduce_sum(
            _float(mtf.less(rank, reference_counts)) * is_complete
        )
        sums[f"bleu_possible_{n}"] = mtf.reduce_sum(is_complete)
    return sums


def _float(condition: mtf.Tensor) -> mtf.Tensor:
    return mtf.cast(condition, tf.float32)
