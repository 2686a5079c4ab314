"""Local attention matches its reference, however the sequence or image is split."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from t2tp.mesh.layout import LayoutError
from t2tp.ops.attention.local_attention import local_attention
from tests.ops.attention.composed_attention import visible_blocks
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

SEQUENCE = {"space": {"length": 24}, "block": [3]}
IMAGE = {"space": {"height": 8, "width": 12}, "block": [2, 3]}
CASES = [
    (SEQUENCE, "", ""),
    (SEQUENCE, "data:2;model:2", "batch:data;heads:model"),
    (SEQUENCE, "all:4", "length:all"),
    (SEQUENCE, "all:8", "length:all"),
    (SEQUENCE, "data:2;all:4", "batch:data;length:all"),
    (IMAGE, "", ""),
    (IMAGE, "rows:4", "height:rows"),
    (IMAGE, "columns:4", "width:columns"),
    (IMAGE, "rows:2;columns:2", "height:rows;width:columns"),
    (IMAGE, "columns:2;rows:2;model:2", "height:rows;width:columns;heads:model"),
]


def make_inputs(case):
    random = np.random.default_rng(0)
    sizes = {"batch": 2, "heads": 2, **case["space"], "d_kv": 4}
    shape = ";".join(f"{name}:{size}" for name, size in sizes.items())
    return {name: (shape, random.normal(size=tuple(sizes.values()))) for name in "qkv"}


def ours(case):
    space = [mtf.Dimension(*dim) for dim in case["space"].items()]
    return lambda q, k, v: local_attention(q, k, v, space, case["block"])


def visible(case):
    """Returns where each position attends to, [position, position]."""
    return visible_blocks([*case["space"].values()], case["block"])


def composed(case):
    def run(q, k, v):
        shape = q.shape
        q, k, v = (tf.reshape(x, [*x.shape[:2], -1, x.shape[-1]]) for x in (q, k, v))
        scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(q.shape[-1])
        weights = tf.nn.softmax(tf.where(visible(case), scores, -math.inf))
        return tf.reshape(weights @ v, shape)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("case", "mesh_shape", "layout"), CASES)
def test_any_layout_gives_the_described_values_and_gradients(case, mesh_shape, layout):
    inputs = make_inputs(case)
    values = with_gradients(ours(case), inputs, mesh_shape, layout)
    assert_close(values, in_float64(composed(case), inputs), 2e-6)


def test_bfloat16():
    inputs = make_inputs(IMAGE)
    values = with_gradients(ours(IMAGE), inputs, "rows:2", "height:rows", tf.bfloat16)
    assert_close(values, in_float64(composed(IMAGE), inputs, tf.bfloat16), 4 * 2**-8)


def test_dimensions_may_come_in_any_order():
    inputs = {
        name: ("batch:2;height:8;heads:2;width:12;d_kv:4", np.swapaxes(array, 1, 2))
        for name, (_, array) in make_inputs(IMAGE).items()
    }
    values = with_gradients(ours(IMAGE), inputs, "rows:2", "height:rows")
    assert_close(values, with_gradients(ours(IMAGE), inputs), 2e-6)
    wanted = in_float64(composed(IMAGE), make_inputs(IMAGE))["y"]
    assert_close({"y": np.swapaxes(values["y"], 1, 2)}, {"y": wanted}, 2e-6)


def test_blocks_that_do_not_divide_are_refused():
    run = functools.partial(with_gradients, inputs=make_inputs(SEQUENCE))
    with pytest.raises(ValueError, match="blocks of 5 do not divide .*length"):
        run(ours({**SEQUENCE, "block": [5]}))
    with pytest.raises(LayoutError, match="'length' goes by 6, and .* would work: 1, 2, 4. Or"):
        run(ours({**SEQUENCE, "block": [6]}), mesh_shape="all:3", layout="length:all")
    with pytest.raises(ValueError, match="one dimension and one block size"):
        run(ours({**SEQUENCE, "block": [3, 3]}))
    with pytest.raises(LayoutError, match="cannot be computed with dimension 'd_kv' split"):
        run(ours(SEQUENCE), mesh_shape="model:2", layout="d_kv:model")
