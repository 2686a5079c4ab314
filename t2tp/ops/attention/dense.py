"""Dense attention, with all scores in memory: the fastest method for short sequences."""

from collections.abc import Sequence

import tensorflow as tf

from t2tp.ops.attention.blocks import collected, query_key_scores, weighted_values
from t2tp.ops.attention.mask import MASKED
from t2tp.ops.attention.score_terms import (
    AllGradients,
    Gradients,
    ScoreTerms,
    softmax_with_sinks,
    through_cap,
)
from t2tp.ops.dropout import scaled


def forward(
    qs: Sequence[tf.Tensor], memory: tuple[tf.Tensor, tf.Tensor], terms: Sequence[ScoreTerms]
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Computes the result, and the attention weights before dropout.

    The queries are one part. Shapes: q (scaled) [batch, heads, length, d_kv], k [batch, kv_heads,
    memory_length, d_kv], v [batch, kv_heads, memory_length, d_v], result [batch, heads, length,
    d_v], weights [batch, heads, length, memory_length].
    """
    (q,), (k, v), (own,) = qs, memory, terms
    exact = own.exact
    scores = own.added(tf.cast(query_key_scores(q, k, exact=exact), tf.float32))
    weights = softmax_with_sinks(scores, own.sinks, exact=exact)
    if own.mask.may_be_blind:
        highest = tf.reduce_max(scores, axis=-1, keepdims=True)
        weights = tf.where(highest < MASKED / 2, 0.0, weights)
    weights = tf.cast(weights, q.dtype)
    if own.dropout is None:
        return [(weighted_values(weights, v, exact=exact), weights)]
    (used,) = own.dropout.dropped(None, weights)
    return [(scaled(weighted_values(used, v, exact=exact), own.dropout.scale), weights)]


def backward(
    by_query: Sequence[Sequence[tf.Tensor]],
    memory: tuple[tf.Tensor, tf.Tensor],
    terms: Sequence[ScoreTerms],
) -> AllGradients:
    """Computes gradients w.r.t. q (scaled), k, v and the bias, through a softmax in float32.

    `by_query` has `q`, the result, the weights, and the gradient w.r.t. the result.
    """
    ((q, y, weights, dy),), (k, v), (own,) = by_query, memory, terms
    exact = own.exact
    used, wide_weights, wide_dy = weights, tf.cast(weights, tf.float32), tf.cast(dy, tf.float32)
    used_dy = dy
    if own.dropout is not None:
        wide_dy *= own.dropout.scale
        used_dy = tf.cast(wide_dy, dy.dtype)
    d_weights = query_key_scores(wide_dy, tf.cast(v, tf.float32), exact=exact, all_keys=True)
    if own.dropout is not None:
        used, d_weights = own.dropout.dropped(None, weights, d_weights)
    if y.dtype.size >= 4:
        # Equals the sum of weights * d_weights over the keys, at a lower cost.
        mean = tf.reduce_sum(tf.cast(dy * y, tf.float32), -1, keepdims=True)
    else:
        # The gradients w.r.t. a query's scores must sum to 0. With 16-bit floats, the mean has an
        # error if it is computed from `y`, which is rounded, or with weights that do not sum to 1.
        # If all values share a large component, this error can exceed the gradients.
        mean = tf.reduce_sum(wide_weights * d_weights, -1, keepdims=True)
        if own.sinks is None:
            mean = tf.math.divide_no_nan(mean, tf.reduce_sum(wide_weights, -1, keepdims=True))
    d_scores = wide_weights * (d_weights - mean)
    d_bias = None
    if own.bias is not None:
        d_bias = own.bias.with_gradient(own.bias.no_gradient(), own.mask.whole, d_scores)
    if own.soft_cap:
        scores = tf.cast(query_key_scores(q, k, exact=exact, all_keys=True), tf.float32)
        d_scores = through_cap(d_scores, scores, own.soft_cap)
    kv_heads = k.shape[1]
    d_scores = tf.cast(d_scores, q.dtype)
    d_q = weighted_values(d_scores, k, exact=exact, all_keys=True)
    d_k = collected(d_scores, q, kv_heads, own.query_parts)
    return [Gradients(d_q, d_bias)], (d_k, collected(used, used_dy, kv_heads, own.query_parts))
