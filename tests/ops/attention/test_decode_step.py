"""Attention in a decode step matches attention over the whole sequence."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp.ops.attention.api import RelativeBias
from t2tp.ops.attention.decode_step import attention_step
from tests.ops.attention.attention_cases import MAX_DISTANCE, make_inputs
from tests.ops.attention.composed_attention import composed_attention

LENGTH = 9
POSITIONS = np.array([0, 8, 4, 5])
LAYOUTS = [
    ("", ""),
    ("a:2;b:2", "batch:a;heads:b;kv_heads:b"),
    ("a:4", "heads:a"),
    ("a:2", "kv_heads:a"),
    ("a:3", "length:a"),
    ("a:2;b:3", "heads:a;length:b"),
]
OPTIONS = {"full": {}, "window": {"window": 3}, "bias": {"max_distance": MAX_DISTANCE}}


def make(kv_heads):
    inputs = make_inputs(length=LENGTH, kv_heads=kv_heads, bias=True)
    return {name: array for name, (_, array) in inputs.items()}


def program(kv_heads, mesh_shape="", layout="", max_distance=0, seen=False, **options):
    """Returns a program for one query per row, with keys up to its position or by `is_seen`."""
    shared = "heads:4" if kv_heads == 4 else f"kv_heads:{kv_heads}"
    features = {
        "q": t2tp.Feature("batch:4;heads:4;d_kv:8"),
        "k": t2tp.Feature(f"batch:4;{shared};length:{LENGTH};d_kv:8"),
        "v": t2tp.Feature(f"batch:4;{shared};length:{LENGTH};d_kv:8"),
        "table": t2tp.Feature("heads:4;buckets:8"),
    }
    if seen:
        features["is_seen"] = t2tp.Feature(f"batch:4;length:{LENGTH}", tf.bool)
    else:
        features["positions"] = t2tp.Feature("batch:4", tf.int32)

    def step(mesh, given):
        table = given.pop("table")
        bias = RelativeBias(table, max_distance) if max_distance else None
        return {"y": attention_step(**given, relative_bias=bias, **options)}

    return t2tp.Program(step, features, mesh_shape=mesh_shape, layout=layout)


def wanted(arrays, positions, **options):
    given = {name: tf.constant(x) for name, x in arrays.items()}
    if "max_distance" not in options:
        given.pop("table")
    whole = composed_attention(causal=True, **options)(**given).numpy()
    return whole[np.arange(len(positions)), :, positions]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("name", OPTIONS)
def test_it_is_the_row_of_whole_attention(name, kv_heads):
    options, arrays = OPTIONS[name], make(kv_heads)
    for mesh_shape, layout in LAYOUTS:
        if "kv_heads" in layout and kv_heads == 1:
            continue
        fed = {**arrays, "q": arrays["q"][np.arange(4), :, POSITIONS], "positions": POSITIONS}
        y = program(kv_heads, mesh_shape, layout, **options)(fed)["y"]
        np.testing.assert_allclose(y, wanted(arrays, POSITIONS, **options), atol=3e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("a:3", "length:a")])
def test_what_is_not_seen_does_not_count_and_nothing_gives_zeros(mesh_shape, layout):
    arrays = make(4)
    is_seen = np.random.default_rng(1).integers(0, 2, [4, LENGTH])
    is_seen[2] = 0
    fed = {**arrays, "q": arrays["q"][:, :, 0], "is_seen": is_seen}
    y = program(4, mesh_shape, layout, seen=True)(fed)["y"]
    scores = np.einsum("bhd,bhmd->bhm", fed["q"], fed["k"]) / 8**0.5
    weights = np.exp(scores) * is_seen[:, None]
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    np.testing.assert_allclose(y, np.einsum("bhm,bhmd->bhd", weights, fed["v"]), atol=3e-6)
    np.testing.assert_array_equal(y[2], 0.0)


@pytest.mark.parametrize("options", [{"window": 2}, {"max_distance": 8}])
def test_a_window_and_a_bias_need_positions(options):
    with pytest.raises(ValueError, match="need the positions"):
        program(4, seen=True, **options)
