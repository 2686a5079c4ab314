"""Measures a lower bound of the time of a training step on TensorFlow.

A step has the matmuls of the model and the sums over devices. All else is replaced by less: a norm
and its gradient by one multiplication each, and the loss by a softmax. There is no clipping and no
optimizer. So a complete step with these kernels takes longer.

All values are zeros, which take as long as other values.
"""

from __future__ import annotations

import turn

args = turn.arguments()

import bare
import tensorflow as tf

mesh = bare.Mesh(args.data, args.model)
sizes = turn.sizes(args)
batch, heads = sizes.batch // args.data, sizes.heads // args.model
d_ff, vocab = sizes.d_ff // args.model, sizes.vocab // args.model
per_head = [batch, heads, sizes.length, sizes.d_kv]
inner = heads * sizes.d_kv
LAYER = [[sizes.d_model, inner]] * 3 + [[inner, sizes.d_model]]
LAYER += [[sizes.d_model, d_ff], [d_ff, sizes.d_model]]


def zeros() -> list[tf.Tensor]:
    """Returns zeros: activations, token embeddings, a norm's scale, and the layers' weights."""
    activations, d_model = [batch * sizes.length, sizes.d_model], [sizes.d_model]
    shapes = [activations, [vocab, *d_model], d_model, *LAYER * sizes.layers]
    return [tf.zeros(shape, args.dtype) for shape in shapes]


def with_gradients(dy, x, w):
    """Returns the gradients of a product x @ w by both factors."""
    return tf.matmul(dy, w, transpose_b=True), tf.matmul(x, dy, transpose_a=True)


def compute(pnum, x, table, scale, *weights):
    layers = [weights[i : i + len(LAYER)] for i in range(0, len(weights), len(LAYER))]
    x = mesh.sum_over_model(x, pnum)  # the looked-up embeddings
    activations = []
    for wq, wk, wv, out, up, down in layers:
        before, normed = x, x * scale
        q, k, v = (tf.reshape(normed @ w, per_head) for w in (wq, wk, wv))
        attention = tf.nn.softmax(tf.matmul(q, k, transpose_b=True))
        attended = tf.reshape(attention @ v, [-1, inner])
        x = between = x + mesh.sum_over_model(attended @ out, pnum)
        hidden_input = x * scale
        hidden = tf.nn.relu(hidden_input @ up)
        x += mesh.sum_over_model(hidden @ down, pnum)
        activations.append(
            (before, normed, q, k, v, attention, attended, between, hidden_input, hidden)
        )
    normed = x * scale
    d_logits = tf.nn.softmax(tf.matmul(normed, table, transpose_b=True))
    gradients = [tf.matmul(d_logits, normed, transpose_a=True)]
    dx = x * mesh.sum_over_model(d_logits @ table, pnum)
    for (wq, wk, wv, out, up, down), values in zip(layers[::-1], activations[::-1], strict=True):
        before, normed, q, k, v, attention, attended, between, hidden_input, hidden = values
        d_hidden, d_down = with_gradients(dx, hidden, down)
        d_hidden = tf.raw_ops.ReluGrad(gradients=d_hidden, features=hidden)
        d_normed, d_up = with_gradients(d_hidden, hidden_input, up)
        dx += between * mesh.sum_over_model(d_normed, pnum)
        d_attended, d_out = with_gradients(dx, attended, out)
        d_attention, dv = with_gradients(tf.reshape(d_attended, per_head), attention, v)
        d_scores = attention * d_attention
        dq, dk = d_scores @ k, tf.matmul(d_scores, q, transpose_a=True)
        flat = [tf.reshape(d, [-1, inner]) for d in (dq, dk, dv)]
        parts = [with_gradients(d, normed, w) for d, w in zip(flat, (wq, wk, wv), strict=True)]
        dx += before * mesh.sum_over_model(tf.add_n([part[0] for part in parts]), pnum)
        gradients += [d_down, d_up, d_out, *(part[1] for part in parts)]
    return dx, [mesh.sum_over_data(gradient, pnum) for gradient in gradients]


turn.take_turns(mesh.step(compute, zeros), version=f"tensorflow {tf.__version__}")
