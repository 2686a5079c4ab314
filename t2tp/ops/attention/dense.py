"""Dense attention, with all scores in memory: the fastest method for short sequences."""

import tensorflow as tf

from t2tp.ops.attention.blocks import collected, query_key_scores, weighted_values
from t2tp.ops.attention.mask import MASKED
from t2tp.ops.attention.score_terms import Gradients, ScoreTerms, softmax_with_sinks, through_cap
from t2tp.ops.dropout import scaled


def forward(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, terms: ScoreTerms
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the result, and the attention weights before dropout.

    Shapes: q (scaled) [batch, heads, length, d_kv], k [batch, kv_heads, memory_length, d_kv], v
    [batch, kv_heads, memory_length, d_v], result [batch, heads, length, d_v], weights [batch,
    heads, length, memory_length].
    """
    exact = terms.exact
    scores = terms.added_to_all(tf.cast(query_key_scores(q, k, exact=exact), tf.float32))
    weights = softmax_with_sinks(scores, terms.sinks, exact=exact)
    if terms.mask.may_be_blind:
        highest = tf.reduce_max(scores, axis=-1, keepdims=True)
        weights = tf.where(highest < MASKED / 2, 0.0, weights)
    weights = tf.cast(weights, q.dtype)
    if terms.dropout is None:
        return weighted_values(weights, v, exact=exact), weights
    (used,) = terms.dropout.dropped(None, weights)
    return scaled(weighted_values(used, v, exact=exact), terms.dropout.scale), weights


def backward(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    y: tf.Tensor,
    weights: tf.Tensor,
    dy: tf.Tensor,
    terms: ScoreTerms,
) -> Gradients:
    """Computes gradients w.r.t. q (scaled), k, v and the bias, through a softmax in float32."""
    exact = terms.exact
    used, wide_weights, wide_dy = weights, tf.cast(weights, tf.float32), tf.cast(dy, tf.float32)
    used_dy = dy
    if terms.dropout is not None:
        wide_dy *= terms.dropout.scale
        used_dy = tf.cast(wide_dy, dy.dtype)
    d_weights = query_key_scores(wide_dy, tf.cast(v, tf.float32), exact=exact, all_keys=True)
    if terms.dropout is not None:
        used, d_weights = terms.dropout.dropped(None, weights, d_weights)
    if y.dtype.size >= 4:
        # Equals the sum of weights * d_weights over the keys, at a lower cost.
        mean = tf.reduce_sum(tf.cast(dy * y, tf.float32), -1, keepdims=True)
    else:
        # The gradients w.r.t. a query's scores must sum to 0. With 16-bit floats, the mean has an
        # error if it is computed from `y`, which is rounded, or with weights that do not sum to 1.
        # If all values share a large component, this error can exceed the gradients.
        mean = tf.reduce_sum(wide_weights * d_weights, -1, keepdims=True)
        if terms.sinks is None:
            mean = tf.math.divide_no_nan(mean, tf.reduce_sum(wide_weights, -1, keepdims=True))
    d_scores = wide_weights * (d_weights - mean)
    d_bias = None
    if terms.bias is not None:
        d_bias = terms.bias.with_gradient(terms.bias.no_gradient(), terms.mask.whole, d_scores)
    if terms.soft_cap:
        scores = tf.cast(query_key_scores(q, k, exact=exact, all_keys=True), tf.float32)
        d_scores = through_cap(d_scores, scores, terms.soft_cap)
    kv_heads = k.shape[1]
    d_scores = tf.cast(d_scores, q.dtype)
    return Gradients(
        weighted_values(d_scores, k, exact=exact, all_keys=True),
        collected(d_scores, q, kv_heads, terms.query_parts),
        collected(used, used_dy, kv_heads, terms.query_parts),
        d_bias,
    )
