"""The least that greedy decoding takes on TensorFlow: in each step the products of a row's last
symbol with the weights and with the cache, the sums between devices, and one operation for each
other step of the model, as in bare_step.py. Nothing is written into the cache.

Devices whose part of the batch is empty do nothing.
"""

from __future__ import annotations

import turn

turn.PARSER.add_argument("--new_tokens", type=int, default=64)
turn.PARSER.add_argument("--prompt", type=int, default=16, help="tokens of each prompt")
args = turn.arguments()

import bare
import tensorflow as tf

sizes = turn.sizes(args)
parts = min(args.data, sizes.batch)
mesh = bare.Mesh(args.data, args.model, working=parts * args.model)
rows, heads = sizes.batch // parts, sizes.heads // args.model
d_ff, vocab = sizes.d_ff // args.model, sizes.vocab // args.model
inner = heads * sizes.d_kv
LAYER = [[sizes.d_model, 3 * inner], [inner, sizes.d_model]]
LAYER += [[sizes.d_model, d_ff], [d_ff, sizes.d_model]]


def zeros() -> list[tf.Tensor]:
    """One memory for all keys and values, the table, a norm's scale, and the layers' weights."""
    memory = [rows, heads, args.prompt + args.new_tokens, sizes.d_kv]
    d_model = [sizes.d_model]
    shapes = [memory, [vocab, *d_model], d_model, *LAYER * sizes.layers]
    return [tf.zeros(shape, args.dtype) for shape in shapes]


def compute(pnum, memory, table, scale, *weights):
    layers = [weights[i : i + len(LAYER)] for i in range(0, len(weights), len(LAYER))]

    def token(number, symbols):
        x = mesh.sum_over_model(tf.gather(table, symbols), pnum)
        for qkv, out, up, down in layers:
            q = tf.reshape((x * scale @ qkv)[:, :inner], [rows, heads, 1, sizes.d_kv])
            attention = tf.nn.softmax(tf.matmul(q, memory, transpose_b=True))
            attended = tf.reshape(attention @ memory, [rows, inner])
            x += mesh.sum_over_model(attended @ out, pnum)
            x += mesh.sum_over_model(tf.nn.relu(x * scale @ up) @ down, pnum)
        logits = tf.matmul(x * scale, table, transpose_b=True)
        chosen = tf.argmax(logits, -1, tf.int32)
        return number + 1, mesh.sum_over_model(chosen, pnum)

    start = [tf.constant(0), tf.zeros([rows], tf.int32)]
    return tf.while_loop(
        lambda number, symbols: number < args.new_tokens, token, start, parallel_iterations=1
    )


work = sizes.batch * args.new_tokens
step = mesh.step(compute, zeros)
turn.take_turns(step, version=f"tensorflow {tf.__version__}", work=work)
