"""Dropout of attention weights depends only on seed, step and position."""

import numpy as np
import pytest

from tests.cases import in_turn
from tests.ops.attention.attention_cases import METHODS, make_inputs, make_ours
from tests.ops.attention.composed_attention import composed_attention
from tests.ops.on_mesh import _weights, assert_close, in_float64, with_gradients

RATE = 0.3
LENGTH = 10
MESHES = [
    ("", ""),
    ("data:2", "batch:data"),
    ("model:4", "heads:model"),
    ("model:2;data:2", "batch:data;heads:model"),
    ("seq:5", "length:seq"),
    ("seq:2;model:2", "length:seq;heads:model"),
]


def kept_weights(method="dense", mesh_shape="", layout="", length=LENGTH, **call):
    """Returns which weights are kept: the values are identity matrices, so outputs are weights."""
    inputs = make_inputs(length=length, d_kv=length)
    inputs["v"] = (inputs["v"][0], np.broadcast_to(np.eye(length), inputs["v"][1].shape))
    ours = make_ours(method, dropout_rate=RATE)
    values = with_gradients(ours, inputs, mesh_shape, layout, **call)
    y = values["y"]
    by_value = np.einsum("bhtm,bhtd->bhmd", y, _weights(list(y.shape)))
    assert_close({"d_v": values["d_v"]}, {"d_v": by_value}, 1e-5)
    return y != 0


CASES = [*in_turn(MESHES[1:], METHODS), ("", "", "blockwise")]


@pytest.mark.slow
@pytest.mark.parametrize(("mesh_shape", "layout", "method"), CASES)
def test_any_mesh_drops_the_same(mesh_shape, layout, method):
    reference = kept_weights()
    np.testing.assert_array_equal(kept_weights(method, mesh_shape, layout), reference)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", ["batch:data;heads:model", "batch:data;length:model"])
def test_values_and_gradients_are_those_of_what_is_kept(layout, method):
    inputs = make_inputs(length=LENGTH, d_kv=LENGTH)
    kept = kept_weights() / (1 - round(RATE * 2**16) / 2**16)
    values = with_gradients(make_ours(method, dropout_rate=RATE), inputs, "data:2;model:2", layout)
    assert_close(values, in_float64(composed_attention(kept=kept), inputs), 3e-6)


def test_seeds_and_steps_drop_differently():
    first = kept_weights()
    for call in ({"seed": 1}, {"step_number": 1}):
        other = kept_weights(**call)
        # Independent decisions agree with probability 0.58.
        assert abs((first == other).mean() - 0.58) < 0.04


def test_the_rate_is_the_part_dropped_whoever_the_neighbours_are():
    kept = kept_weights(length=65)
    n = kept.size
    for part in (kept, kept[..., ::2], kept[..., 1::2], kept[..., -1]):
        deviation = (RATE * (1 - RATE) / part.size) ** 0.5
        assert abs(part.mean() - (1 - RATE)) < 4 * deviation
    for axis in range(4):
        a, b = (
            np.take(kept, r, axis)
            for r in (range(kept.shape[axis] - 1), range(1, kept.shape[axis]))
        )
        assert abs((a & b).mean() - (1 - RATE) ** 2) < 5 * (0.25 / n) ** 0.5, axis
