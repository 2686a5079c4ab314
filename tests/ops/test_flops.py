"""The floating-point operations of products match counts by hand."""

import pytest
import tensorflow as tf

from t2tp import mtf
from t2tp.ops.attention.api import attention
from t2tp.ops.attention.local_attention import local_attention
from t2tp.ops.conv.convolution import convolution
from t2tp.ops.flops import matmul_flops
from t2tp.program.abstract_program import AbstractProgram
from t2tp.program.program import Feature


def count(build, **shapes: str) -> int:
    """Returns the FLOPs of the operations that `build(**tensors)` makes."""
    found = []

    def step(mesh, features):
        y = build(**features)
        found.append(matmul_flops(mesh.graph.operations))
        return {"y": y}

    AbstractProgram(step, {name: Feature(shape) for name, shape in shapes.items()})
    return found[0]


def attended(window):
    return lambda q, k, v: attention(q, k, v, causal=True, window=window)


def attended_in_blocks(block, **space):
    dims = [mtf.Dimension(*dim) for dim in space.items()]
    return lambda q, k, v: local_attention(q, k, v, dims, block)


TABLE = mtf.Dimension("rows", 5)


def one_hot(ids):
    return mtf.one_hot(mtf.cast(ids, tf.int32), TABLE)


HEADS = {"q": "batch:2;heads:4;length:10;d_kv:8"} | dict.fromkeys(
    "kv", "batch:2;heads:2;length:10;d_kv:8"
)
# Operation -> function that builds it, shapes of its inputs, FLOPs.
COUNTED = {
    "matrices": (
        lambda x, w: mtf.einsum([x, w], reduced_dims=[mtf.Dimension("d_in", 5)]),
        {"x": "batch:3;d_in:5", "w": "d_in:5;d_out:7"},
        2 * 3 * 5 * 7,
    ),
    "no product": (lambda x: mtf.reduce_sum(x * x) + 1.0, {"x": "batch:3;d_in:5"}, 0),
    # A one-hot tensor selects rows, or adds up those with the same id.
    "look-up": (
        lambda ids, w: mtf.einsum([one_hot(ids), w], reduced_dims=[TABLE]),
        {"ids": "batch:3", "w": "rows:5;d_out:7"},
        0,
    ),
    "sums of rows": (
        lambda ids, x: mtf.einsum([one_hot(ids), x], reduced_dims=ids.shape.dims),
        {"ids": "batch:3", "x": "batch:3;d_out:7"},
        0,
    ),
    "convolution": (
        lambda x, w: convolution(x, w, stride=2),
        {"x": "batch:2;height:8;width:6;channels:3", "w": "kh:3;kw:3;channels:3;filters:5"},
        2 * (2 * 4 * 3) * 5 * (3 * 3 * 3),
    ),
    # Two products of each query with the keys it attends to.
    "attention": (attended(None), HEADS, 2 * 2 * (2 * 4 * 10) * 8 * 10),
    "attention in a window": (attended(4), HEADS, 2 * 2 * (2 * 4 * 10) * 8 * 4),
    # A sequence attends to two blocks, an image to five.
    "blocks of a sequence": (
        attended_in_blocks([3], length=12),
        dict.fromkeys("qkv", "batch:2;length:12;d_kv:4"),
        4 * (2 * 12 * 4) * 2 * 3,
    ),
    "blocks of an image": (
        attended_in_blocks([2, 3], height=4, width=6),
        dict.fromkeys("qkv", "batch:2;height:4;width:6;d_kv:4"),
        4 * (2 * 4 * 6 * 4) * 5 * 2 * 3,
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_products_are_counted(name):
    build, shapes, flops = COUNTED[name]
    assert count(build, **shapes) == flops
