"""The least that greedy decoding takes on TensorFlow: in each step the products of a row's last
symbol with the weights and with the cache, and the sums between devices. See bare_step.py.

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
    """Activations, one memory for all keys and values, the table, and the layers' weights."""
    memory = [rows, heads, args.prompt + args.new_tokens, sizes.d_kv]
    shapes = [[rows, sizes.d_model], memory, [vocab, sizes.d_model], *LAYER * sizes.layers]
    return [tf.zeros(shape, args.dtype) for shape in shapes]


def compute(pnum, x, memory, table, *weights):
    layers = [weights[i : i + len(LAYER)] for i in range(0, len(weights), len(LAYER))]

    def token(number, x):
        x = mesh.sum_over_model(x, pnum)  # what was looked up
        for qkv, out, up, down in layers:
            q = tf.reshape((x @ qkv)[:, :inner], [rows, heads, 1, sizes.d_kv])
            attended = tf.matmul(q, memory, transpose_b=True) @ memory
            x = mesh.sum_over_model(tf.reshape(attended, [rows, inner]) @ out, pnum)
            x = mesh.sum_over_model(x @ up @ down, pnum)
        logits = tf.matmul(x, table, transpose_b=True)
        chosen = mesh.sum_over_model(logits[:, :1], pnum)  # as small as what is chosen by
        return number + 1, x + chosen

    start = [tf.constant(0), x]
    return tf.while_loop(
        lambda number, x: number < args.new_tokens, token, start, parallel_iterations=1
    )


work = sizes.batch * args.new_tokens
step = mesh.step(compute, zeros)
turn.take_turns(step, version=f"tensorflow {tf.__version__}", work=work)
