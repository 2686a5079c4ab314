"""Attention matches the composed reference in each layout, with both methods.

Layouts are compared in float64, so that rounding hides no error.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.layout_check.double_program import DoubleProgram
from t2tp.ops.attention.api import RelativeBias, attention
from tests.cases import in_turn
from tests.ops.attention.attention_cases import (
    METHODS,
    OPTIONS,
    make_composed,
    make_inputs,
    make_ours,
)
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

BOTH, TENSOR = OPTIONS["causal_segments_bias"], ("data:2;model:2", "batch:data;heads:model")
SHARED = {"causal": True, "bias": True, "heads": 8, "kv_heads": 2}
MEMORY = {"memory": 14, "segments": True, "bias": True}
OF_A_MEMORY = [
    ("a:2", "length:a"),
    ("a:2", "memory:a"),
    ("a:2", "length:a;memory:a"),
    ("a:2;b:2", "length:a;memory:b"),
    ("a:2;b:2", "batch:b;length:a;memory:a"),
]
# Sizes and options of a case, and the layouts and methods to test it with.
CASES = {
    **{
        f"option {name}": (OPTIONS[name], [layout], [method])
        for name, method, *layout in in_turn(
            OPTIONS,
            [
                ("dense", *TENSOR),
                ("blockwise", "seq:2", "length:seq"),
                ("blockwise", *TENSOR),
                ("dense", "seq:2", "length:seq"),
            ],
            times=2,
        )
    },
    "any layout": (
        BOTH,
        [
            ("", ""),
            ("data:4", "batch:data"),
            ("model:4", "heads:model"),
            ("data:2;model:4", "batch:data;heads:model"),
            ("model:2;data:2", "batch:model;heads:data"),
            ("seq:2", "length:seq"),
            ("seq:5", "length:seq"),
            ("data:2;seq:2", "batch:data;length:seq"),
            ("seq:2;model:2", "length:seq;heads:model"),
        ],
        METHODS,
    ),
    # Heads that share keys and values.
    "shared heads": (
        SHARED,
        [
            ("", ""),
            ("model:2", "heads:model;kv_heads:model"),
            ("model:4", "heads:model"),
            ("model:2", "kv_heads:model"),
            ("data:2;model:2", "batch:data;heads:model"),
            ("data:2;model:2", "heads:data;kv_heads:model"),
        ],
        METHODS,
    ),
    "shared heads, and a memory": (
        {**SHARED, "memory": 10},
        [
            ("a:2;b:2", "length:a;memory:a;heads:b;kv_heads:b"),
            ("a:2;b:2", "length:a;memory:a;heads:b"),
            ("a:2;b:2", "length:a;memory:b;heads:b"),
            ("a:2;b:2", "length:a;memory:b;kv_heads:a"),
            ("a:2;b:2", "length:b;memory:b;kv_heads:a"),
            ("a:2;b:2", "length:b;memory:a;heads:a"),
        ],
        METHODS,
    ),
    # Both processors need the middle kv head. Of 6 heads, a processor has 3, and each kv head
    # serves 2. Of 12 heads, a processor has 6, and each kv head serves 4.
    **{
        f"{heads} heads share {kv_heads}": (
            {"heads": heads, "kv_heads": kv_heads},
            [(f"model:{model}", "heads:model")],
            ["dense"],
        )
        for heads, kv_heads, model in [(6, 3, 2), (12, 3, 2)]
    },
    # Tokens in segments 3 to 6 attend to nothing in the memory.
    "a memory": (MEMORY, OF_A_MEMORY, METHODS),
    "segments of the queries serve for the memory": (
        {"memory": 10, "segments": True, "own_segments": False, "causal": True, "window": 4},
        OF_A_MEMORY[:4],
        ["blockwise"],
    ),
    # Slices of 1, 4 and 11 positions, in blocks of at most 4 positions. In the cases "halves", a
    # slice has 8 positions, so each half is one block.
    **{
        f"slices of {length}": (
            {**OPTIONS["window_segments_bias"], "length": length},
            [("seq:2", "length:seq")],
            ["blockwise"],
        )
        for length in (2, 8, 22)
    },
    **{
        f"halves of {length} over {count}": (
            {**BOTH, "length": length},
            [(f"seq:{count}", "length:seq")],
            ["blockwise"],
        )
        for count, length in [(2, 16), (3, 24)]
    },
    "one of everything": (
        {"causal": True, "segments": True, "batch": 2, "heads": 3, "length": 1, "d_kv": 1},
        [("data:2;model:3", "batch:data;heads:model")],
        METHODS,
    ),
}


LAID_OUT = [
    (name, *layout, method)
    for name, (_, layouts, methods) in CASES.items()
    for layout in layouts
    for method in methods
]


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "mesh_shape", "layout", "method"), LAID_OUT)
def test_any_layout_gives_the_composed_value_and_gradients(operation, mesh_shape, layout, method):
    options = CASES[operation][0]
    inputs, ours = make_inputs(**options), make_ours(method, **options)
    values = with_gradients(ours, inputs, mesh_shape, layout, program_type=DoubleProgram)
    # Constants of the graph, such as the scale of the scores, are float32.
    assert_close(values, in_float64(make_composed(**options), inputs), 5e-7)


def one_after_another(make, all_options):
    """Applies attention several times; each result becomes the next queries."""

    def chain(q, k, v, segments):
        for options in all_options:
            q = make(**options)(q, k, v, segments=segments if options.get("segments") else None)
        return q

    return chain


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("seq:2", "length:seq")])
def test_layers_share_masks_only_where_they_mask_alike(mesh_shape, layout, method):
    names = ["causal_segments_bias", "causal", "window_segments_bias"]
    layers = [dict(OPTIONS[name]) for name in names]
    inputs = make_inputs(segments=True)
    ours = one_after_another(functools.partial(make_ours, method), layers)
    values = with_gradients(ours, inputs, mesh_shape, layout)
    composed = in_float64(one_after_another(make_composed, layers), inputs)
    assert_close(values, composed, 2e-5)


def test_the_mask_of_many_layers_is_computed_once():
    def count(num_layers):
        inputs = make_inputs(segments=True)
        features = {name: t2tp.Feature(shape) for name, (shape, _) in inputs.items()}
        layers = [OPTIONS["causal_segments_bias"]] * num_layers
        chain = one_after_another(functools.partial(make_ours, "dense"), layers)
        program = t2tp.Program(lambda mesh, given: {"y": chain(**given)}, features)
        types = [op.type for op in program.trace().graph.get_operations()]
        return types.count("Equal"), types.count("LessEqual"), types.count("Softmax")

    assert count(3) == (1, 1, 3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mesh_shape", ["", "model:2"])
def test_extreme_scores_stay_finite_and_see_nothing_masked(mesh_shape, method):
    options = {"causal": True, "segments": True}
    inputs = make_inputs(scale=1e4, **options)
    values = with_gradients(make_ours(method, **options), inputs, mesh_shape, "heads:model")
    for name, value in values.items():
        assert np.isfinite(value).all(), name
    wanted = in_float64(make_composed(**options), inputs)
    # Weights are 0 or 1, so gradients w.r.t. q and k are only rounding errors.
    assert_close(
        {name: values[name] for name in ("y", "d_v")},
        {name: wanted[name] for name in ("y", "d_v")},
        2e-6,
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dim", ["d_kv", "buckets"])
def test_a_dimension_that_attention_runs_along_is_refused(dim, method):
    inputs = make_inputs(bias=True)
    with pytest.raises(t2tp.LayoutError, match=f"cannot be computed with dimension '{dim}' split"):
        with_gradients(make_ours(method), inputs, "a:2", f"{dim}:a")


@pytest.mark.parametrize("batch", ["", "batch:2;beam:2;"])
def test_any_number_of_batch_dimensions(batch):
    arrays = {name: array for name, (_, array) in make_inputs().items()}
    sizes = [2, 2] if batch else []
    inputs = {
        name: (
            f"{batch}heads:4;length:10;d_kv:8",
            (array if batch else array[0]).reshape([*sizes, *array.shape[1:]]),
        )
        for name, array in arrays.items()
    }
    layout = "heads:model;beam:data"
    values = with_gradients(make_ours("dense"), inputs, "data:2;model:2", layout)
    whole = in_float64(make_composed(), make_inputs(batch=4))["y"]
    wanted = whole.reshape([*sizes, 4, 10, 8]) if batch else whole[0]
    np.testing.assert_allclose(values["y"], wanted, atol=1e-5)


def refused(said, *, q="b:2;heads:4;t:6;d:4", k="b:2;heads:4;t:6;d:4", v=None, **options):
    """Checks that `attention` refuses shapes and options; options that are texts are shapes."""

    def step(mesh, given):
        def zeros(shape, dtype=tf.float32):
            return mtf.zeros(mesh, mtf.convert_to_shape(shape), dtype)

        made = dict(options)
        for name in {"segments", "memory_segments"} & set(options):
            made[name] = zeros(options[name], tf.int32)
        if "relative_bias" in options:
            shape, distance = options["relative_bias"]
            made["relative_bias"] = RelativeBias(zeros(shape), distance)
        return {"y": attention(zeros(q), zeros(k), zeros(v or k), **made)}

    with pytest.raises(ValueError, match=said):
        t2tp.Program(step)


def test_shapes_that_do_not_fit_are_refused():
    refused("k .* and v .* must have the same dimensions except the last", v="b:2;heads:4;t:5;d:4")
    refused(r"must be \[batch\.\.\., heads, length, d_kv\]", q="t:6;d:4")
    refused("same batch dimensions", k="b:3;heads:4;t:6;d:4")
    refused("same last dimension", k="b:2;heads:4;t:6;d:5")
    refused("kv_heads.* must divide", k="b:2;kv_heads:3;t:6;d:4")
    refused(r"segments .* must be", segments="t:6;b:2")
    refused("is not as long as", k="b:2;heads:4;m:5;d:4", segments="b:2;t:6")
    refused("memory_segments .* must be", segments="b:2;t:6", memory_segments="b:2;m:6")
    refused("memory_segments need segments", memory_segments="b:2;t:6")


def test_options_that_mean_nothing_are_refused():
    refused("causal and window .* size=6.* size=5", k="b:2;heads:4;m:5;d:4", causal=True)
    refused("causal and window .* size=6.* size=5", k="b:2;heads:4;m:5;d:4", window=2)
    refused("window is 0, and must be at least 1", window=0)
    refused("soft_cap is -1.0, and must be at least 0", soft_cap=-1.0)
    refused("dropout_rate is 1.0, and must be at least 0 and below 1", dropout_rate=1.0)
    refused("method is 'flash'", method="flash")
    refused("block_size must be even", block_size=3)
    refused(r"must be \[.*, buckets\]", relative_bias=("g:2;n:8", 16))
    refused("must be at least 4", relative_bias=("heads:4;n:3", 16))
    refused("max_distance 2 must be above 2", relative_bias=("heads:4;n:8", 2))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_xla_gives_the_same(method):
    inputs = make_inputs(segments=True, bias=True)
    ours = make_ours(method, causal=True, dropout_rate=0.3)
    plain, compiled = (with_gradients(ours, inputs, xla=xla) for xla in (False, True))
    for name in plain:
        np.testing.assert_allclose(compiled[name], plain[name], atol=1e-4, err_msg=name)
