"""The collectives of operations on split dimensions, and their bytes."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.ops.attention.local_attention import local_attention
from t2tp.ops.conv.convolution import convolution
from t2tp.ops.cross_entropy.operation import softmax_cross_entropy
from t2tp.ops.norms.batch_norm import batch_norm
from t2tp.ops.norms.layer_norm import layer_norm

TOKENS = {"logits": "batch:8;length:4;vocab:16", "targets": "batch:8;length:4"}
SENTENCE = {"x": "batch:8;length:4;d:16", "scale": "d:16", "bias": "d:16"}
IMAGE = {"x": "batch:8;height:4;width:6;c:8", "scale": "c:8", "bias": "c:8"}
FILTERED = {"x": "batch:2;height:16;width:16;c:4", "w": "h:3;w:3;c:4;filters:6"}
POINTS = FILTERED | {"w": "h:1;w:1;c:4;filters:6"}


def collectives(op, shapes, mesh_shape, layout):
    """Returns the collectives of a program that outputs `op(**tensors)`."""
    features = {
        name: t2tp.Feature(shape, tf.int32 if name == "targets" else tf.float32)
        for name, shape in shapes.items()
    }
    program = t2tp.Program(
        lambda mesh, given: {"y": op(**given)}, features, mesh_shape=mesh_shape, layout=layout
    )
    return {(kind, "+".join(axes)): n for (kind, axes), n in program.collectives().items()}


def loss(**options):
    def op(logits, targets):
        return softmax_cross_entropy(logits, targets, logits.shape.dims[-1], **options)

    return op


def d_batch_norm(x, scale, bias):
    return mtf.gradients([batch_norm(x, scale, bias, 0.1)[0]], [x])[0]


def d_layer_norm(x, scale, bias):
    return mtf.gradients([layer_norm(x, scale, bias, x.shape.dims[-1])], [x])[0]


def d_filters(x, w):
    return mtf.gradients([convolution(x, w)], [w])[0]


def total(x):
    return mtf.reduce_sum(x, reduced_dim=x.shape.dims[0])


ROW = 2 * 16 * 4 * 4  # bytes of one row of two images with 16 columns and 4 channels
QUARTERS = ("rows:4", "height:rows")


# Operation, shapes, mesh and layout, and the collectives.
MOVED = {
    # Each processor sends only the total of its slice.
    "cumsum": (
        lambda x: mtf.cumsum(x, x.shape.dims[0]), {"x": "b:8;c:3"}, ("x:4", "b:x"),
        {("allgather", "x"): (1, 3 * 4)},
    ),
    # A sum that is cast to a wider dtype is reduced in that dtype.
    "cast": (
        lambda x: mtf.cast(total(mtf.cast(x, tf.bfloat16)), tf.float32),
        {"x": "a:8;b:3"}, ("x:8", "a:x"), {("allreduce", "x"): (1, 3 * 4)},
    ),
    # With a split vocabulary, three numbers per token are all-reduced; with smoothing, also the
    # sum of the token's logits.
    "loss": (
        loss(), TOKENS, ("model:4", "vocab:model"), {("allreduce", "model"): (2, 3 * 8 * 4 * 4)}
    ),
    "loss with smoothing": (
        loss(z_loss=1e-4, label_smoothing=0.1), TOKENS, ("model:4", "vocab:model"),
        {("allreduce", "model"): (2, 4 * 8 * 4 * 4)},
    ),
    # Norms: two numbers per channel, or per token, forward and backward.
    "batch norm": (
        d_batch_norm, IMAGE, ("data:2;rows:2", "batch:data;height:rows"),
        {
            ("allgather", "data+rows"): (1, 2 * 8 * 4),
            ("allreduce", "data+rows"): (1, 2 * 8 * 4),
        },
    ),
    "layer norm": (
        d_layer_norm, SENTENCE, ("model:4", "d:model"),
        {
            ("allgather", "model"): (1, 2 * 8 * 4 * 4),
            ("allreduce", "model"): (1, 2 * 8 * 4 * 4),
        },
    ),
    # A convolution sends a row to each neighbour, here for the gradient of its filters.
    "convolution": (
        d_filters, FILTERED, QUARTERS,
        {("permute", "rows"): (2, 2 * ROW), ("allreduce", "rows"): (1, 9 * 4 * 6 * 4)},
    ),
    "convolution of points": (d_filters, POINTS, QUARTERS, {("allreduce", "rows"): (1, 4 * 6 * 4)}),
    # Attention in blocks of 3 sends one block of keys and one of values.
    "local attention": (
        lambda q, k, v: local_attention(q, k, v, q.shape.dims[1:2], [3]),
        dict.fromkeys("qkv", "batch:2;length:24;d_kv:4"), ("all:2", "length:all"),
        {("permute", "all"): (2, 2 * 2 * 3 * 4 * 4)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED)
def test_what_moves(name):
    op, shapes, mesh, moved = MOVED[name]
    assert collectives(op, shapes, *mesh) == moved


def test_a_sum_that_is_needed_narrow_and_wide_is_reduced_once_and_in_the_wide_dtype_otherwise():
    def both(x):
        narrow = total(mtf.cast(x, tf.bfloat16))
        return mtf.cast(narrow, tf.float32) + mtf.cast(mtf.square(narrow), tf.float32)

    ((count, _),) = collectives(both, {"x": "a:8;b:3"}, "x:8", "a:x").values()
    assert count == 1
    x = np.full((8, 3), 1.0)
    x[0] = 256.0  # in bfloat16, 256 + 1 is 256
    widened = t2tp.Program(
        lambda mesh, f: {"y": mtf.cast(total(mtf.cast(f["x"], tf.bfloat16)), tf.float32)},
        {"x": t2tp.Feature("a:8;b:3")}, mesh_shape="x:8", layout="a:x",
    )  # fmt: skip
    np.testing.assert_array_equal(widened({"x": x})["y"], [263.0] * 3)
