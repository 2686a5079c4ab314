"""With `exact_sums`, every layout computes the same bits; unsupported layouts are refused."""

from __future__ import annotations

import functools
import os

import numpy as np
import pytest
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import mtf, registry
from t2tp.decoding import DecodeOptions, Decoder, Request
from t2tp.decoding.scoring import ScoredRow, Scorer, score
from t2tp.mesh.layout import Layout
from t2tp.mesh.storage import Storage
from t2tp.optim.clipping import global_norm
from t2tp.program.abstract_program import AbstractProgram
from t2tp.trainer.model_fn import ModeKeys, model_fn_of

pytestmark = pytest.mark.skipif(
    os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0", reason="oneDNN's matmuls are refused"
)

ROWS, LENGTH, VOCAB = 16, 16, 64
VOCABS = {"inputs": VOCAB, "targets": VOCAB}
NAMES = ("targets", "targets_segmentation", "targets_position")
TENSOR = "heads:model;kv_heads:model;d_ff:model;vocab:model"
TENSOR += ";batch:data;layers:stage;length:seq"
JOINT = {"mesh_shape": "pod:2;data:2", "layout": "batch:pod+data"}
EXPERTS = {"mesh_shape": "data:2;expert:2", "layout": "batch:data+expert;experts:expert"}
POD = TENSOR.replace("batch:data", "batch:pod+data")

TEXT = {"d_model": 64, "d_ff": 64, "num_heads": 4, "d_kv": 16, "num_hidden_layers": 1}
TEXT |= {"layer_prepostprocess_dropout": 0.1, "initializer_stddev": 1.0}
# Model, its hparams set, and changes of hparams.
FAMILIES = {
    "lm": (
        "transformer_lm",
        "transformer_lm_plain_tiny",
        TEXT | {"token_shift": True, "embedding_shortcut": True},
    ),
    "encdec": ("transformer", "transformer_tiny", TEXT | {"position": "relative"}),
    "moe": (
        "transformer_moe",
        "transformer_moe_tiny",
        TEXT | {"num_experts": 4, "moe_every": 1, "moe_gating": "top_2", "mlp": "swiglu"},
    ),
    "vit": ("vit", "vit_tiny", {"num_hidden_layers": 1, "d_ff": 64}),
    "resnet": ("mtf_resnet", "mtf_resnet_digits", {}),
}

# The log-probabilities of this number of prompts are compared for each model.
PROMPTS = int(os.environ.get("T2TP_PROMPTS", "50"))


def model_of(mesh_shape="", layout=TENSOR, parts=8, family="lm", **changes):
    """Returns a model and its layout."""
    name, hparams_set, values = FAMILIES[family]
    hparams = registry.hparams(hparams_set)
    values = values | changes | {"mesh_shape": mesh_shape, "layout": layout, "exact_sums": parts}
    for key, value in values.items():
        hparams.set(key, value)
    return registry.model(name)(hparams, VOCABS), Layout.from_hparams(hparams)


def batch_of(step, family="", max_length=LENGTH, **_):
    """Returns a batch of random examples."""
    rng = np.random.default_rng(step)
    if family in ("vit", "resnet"):
        images = rng.uniform(size=[ROWS, 8, 8, 1]).astype(np.float32)
        classes = rng.integers(VOCAB, size=ROWS).astype(np.int32)
        return {"inputs": images, "targets": classes, "weights": np.ones(ROWS, np.float32)}
    batch = {}
    for name in ("targets", "inputs")[: 2 if family == "encdec" else 1]:
        ids = rng.integers(0, VOCAB, [ROWS, max_length]).astype(np.int32)
        positions = np.tile(np.arange(max_length, dtype=np.int32), (ROWS, 1))
        values = ids, (ids > 0).astype(np.int32), positions
        batch |= zip((x.replace("targets", name) for x in NAMES), values, strict=True)
    return batch


def program_of(program=t2tp.Program, batch=None, mode=ModeKeys.TRAIN, variables=None, **changes):
    """Returns a program that trains or evaluates a model."""
    model, layout = model_of(**changes)
    batch = batch or batch_of(0, **changes)
    model_fn = model_fn_of(type(model), VOCABS, train_steps=10)

    def step(mesh, features):
        return model_fn(mesh, features, mode, model.hparams).outputs()

    features = {}
    for name, x in batch.items():
        dims = ("batch", "length") if x.ndim < 3 else ("batch", "height", "width", "channels")
        shape = ";".join(f"{dim}:{size}" for dim, size in zip(dims, x.shape, strict=False))
        features[name] = t2tp.Feature(shape, tf.as_dtype(x.dtype))
    shared = {} if variables is None else {"variables": variables}
    return program(step, features, layout=layout, **shared)


def trained(steps, **changes):
    """Returns the bytes of all results of some steps.

    The results are losses, norms and metrics, variables and slots, and an evaluation's metrics.
    """
    program = program_of(**changes)
    shown = {}
    for step in range(steps):
        batch = batch_of(step, **changes)
        shown |= {(step, name): x.tobytes() for name, x in program(batch, step).items()}
    shown |= {v.spec.name: v.numpy().tobytes() for v in program.variables}
    evaluation = program_of(mode=ModeKeys.EVAL, variables=program.variables, **changes)
    found = evaluation(batch_of(steps, **changes), steps)
    return shown | {("evaluation", name): x.tobytes() for name, x in found.items()}


@functools.cache
def on_one_device(steps, **changes):
    return trained(steps, **changes)


def assert_same_bits(given, wanted):
    assert [name for name in wanted if given[name] != wanted[name]] == []


CASES = [
    ({"mesh_shape": "data:2;model:2", "zero_stage": 1}, {}),
    (JOINT | {"zero_stage": 2, "microbatches": 2}, {}),
    (JOINT | {"zero_stage": 1, "zero_axes": "pod"}, {}),
    (JOINT | {"zero_stage": 3, "zero_axes": "data"}, {}),
    (
        {"mesh_shape": "stage:2;data:2", "microbatches": 2, "zero_stage": 1},
        {
            "recompute": "layer",
            "show_movement": True,
            "position": "relative",
            "num_hidden_layers": 3,
        },
    ),
    (
        {"mesh_shape": "data:2;model:2", "zero_stage": 3},
        {"num_kv_heads": 2, "position": "rotary", "qk_norm": "head", "optimizer": "muon"},
    ),
    ({"mesh_shape": "data:2;model:2"}, {"family": "encdec", "optimizer": "lion"}),
    (
        {"mesh_shape": "data:2;model:2", "layout": f"{TENSOR};experts:data", "zero_stage": 3},
        {"family": "moe", "optimizer": "muon"},
    ),
    # TensorFlow computes one product of small matrices with another kernel than a batch of
    # such products.
    (EXPERTS | {"microbatches": 2}, {"family": "moe", "num_experts": 2, "d_model": 16, "d_ff": 16}),
    (JOINT | {"zero_stage": 2, "zero_axes": "data"}, {"family": "vit", "optimizer": "muon"}),
    ({"mesh_shape": "data:2;model:2"}, {"family": "resnet"}),
    (
        {"mesh_shape": "stage:2;data:2;seq:2", "microbatches": 2, "zero_stage": 1},
        {"max_length": 32, "num_hidden_layers": 2},
    ),
    (
        {"mesh_shape": "data:2;seq:2;model:2", "zero_stage": 3},
        {"max_length": 32, "num_kv_heads": 2, "qk_norm": "head", "loss_chunk": 16},
    ),
    # Eigen splits a sum of 2048 addends. With several threads, the place of the split depends
    # on the size of the matrix.
    ({"mesh_shape": "model:4"}, {"d_model": 2048}),
]
# Larger models in CI.
LARGER = [
    ({"mesh_shape": "data:4;model:2", "zero_stage": 3}, {"loss_chunk": 16}),
    (
        {"mesh_shape": "pod:2;data:2;model:2", "layout": POD, "zero_stage": 3, "zero_axes": "pod"},
        {"family": "moe", "loss_chunk": 16, "position": "relative"},
    ),
    (
        {"mesh_shape": "pod:2;stage:2;data:2", "layout": POD, "zero_stage": 2, "zero_axes": "data"},
        {"family": "encdec", "loss_chunk": 16, "position": "relative"},
    ),
    ({"mesh_shape": "stage:2;data:2", "zero_stage": 1}, {"family": "vit"}),
]
for changes, kept in LARGER:
    larger = {"microbatches": 2, **changes}, {"num_hidden_layers": 2, "d_kv": 64, **kept}
    CASES.append(pytest.param(*larger, marks=pytest.mark.ci_only))


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "kept"), CASES)
def test_a_layout_computes_the_bits_of_one_device(changes, kept):
    assert_same_bits(trained(2, **changes, **kept), on_one_device(2, **kept))


def test_several_threads_are_refused_where_something_runs(monkeypatch):
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 2)
    with pytest.raises(t2tp.LayoutError, match="TF_NUM_INTRAOP_THREADS=1"):
        program_of(d_model=2048)
    assert program_of(program=AbstractProgram, mesh_shape="data:2").collective_log()


def decoded(requests, mesh_shape, options, **changes):
    """Returns the tokens and the log-probability of the best answer to each request."""
    model, layout = model_of(mesh_shape, **{**changes, "layer_prepostprocess_dropout": 0.0})
    decoder = Decoder.from_model(model, DecodeOptions(eos_id=-1, **options), layout=layout)
    return [(best.tokens, best.log_prob) for best, *_ in decoder(requests)]


@pytest.mark.parametrize("mesh_shape", ["model:2", "model:4"])
def test_few_heads_with_norms_decode_where_they_train(mesh_shape):
    """A processor has one or two heads, fewer than a SIMD vector has elements."""
    requests, options = [Request([1, 2], limit=3)], {"batch_size": 16, "beam_size": 1}
    one, split = (decoded(requests, mesh, options, qk_norm="head") for mesh in ("", mesh_shape))
    assert split == one


def test_small_variables_stay_whole_at_rest():
    layout = Layout("data:4", "batch:data", Storage(1), exact_sums=8)
    shapes = "heads:2;d_kv:12", "heads:4;d_kv:16", "heads:4;d_kv:12"
    at_rest = [layout.slice_size(layout.at_rest(mtf.convert_to_shape(s))) for s in shapes]
    assert at_rest == [(2, 12), (1, 16), (4, 12)]


SCORED = [
    ("stage:2;data:2", {"beam_size": 2, "alpha": 0.0}, {"num_hidden_layers": 2}),
    ("model:2", {"temperature": 1.0}, {"position": "rotary", "num_kv_heads": 2}),
    (
        "data:4",
        {"temperature": 1.0},
        {"attention_window": 8, "attention_type": "local", "loss_chunk": 16},
    ),
]


@pytest.mark.ci_only
@pytest.mark.slow
@pytest.mark.parametrize(("mesh_shape", "options", "changes"), SCORED)
def test_training_scoring_and_decoding_agree_to_the_bit(mesh_shape, options, changes):
    changes = {**changes, "layer_prepostprocess_dropout": 0.0, "initializer_stddev": 0.3}
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, VOCAB, rng.integers(0, LENGTH - 2)).tolist() for _ in range(PROMPTS)]
    requests = [Request(prompt, limit=3) for prompt in prompts]

    def scored(mesh_shape, rows, batch_size):
        model, layout = model_of(mesh_shape, **changes)
        programs = {}

        def evaluate(features, batch):
            key = features["targets"].shape.to_string
            if key not in programs:
                programs[key] = t2tp.Program(
                    lambda *given: score(model, *given), features, layout=layout
                )
            return programs[key](batch)

        return [each.log_prob for each in Scorer(evaluate, layout, LENGTH, batch_size)(rows)]

    found = decoded(requests, "", {**options, "batch_size": 1}, **changes)
    assert decoded(requests, mesh_shape, {**options, "batch_size": 48}, **changes) == found
    rows = [
        ScoredRow(prompt + new, start=len(prompt))
        for prompt, (new, _) in zip(prompts, found, strict=True)
    ]
    assert scored(mesh_shape, rows, 40) == [log_prob for _, log_prob in found]

    ends = [row.start + number % 3 + 1 for number, row in enumerate(rows)]
    last = [ScoredRow(row.targets[:n], start=n - 1) for row, n in zip(rows, ends, strict=True)]
    names = (*NAMES, "targets_weights")
    unused = dict.fromkeys(names, np.zeros([ROWS, LENGTH], np.int32))
    program = program_of(batch=unused, mesh_shape=mesh_shape, **changes)
    initial = [v.numpy() for v in program.variables]
    log_probs = []
    for number, row in enumerate(last):
        first = number - number % ROWS
        batch = np.zeros([3, ROWS, LENGTH], np.int32)
        for i, other in enumerate(rows[first : first + ROWS]):
            batch[:2, i, : len(other.targets)] = other.targets, np.ones(len(other.targets))
        batch[2, number - first, row.start] = 1
        targets, segments, weights = batch
        positions = np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1))
        for variable, value in zip(program.variables, initial, strict=True):
            variable.assign(value)
        given = (targets, segments, positions, weights)
        loss = program(dict(zip(names, given, strict=True)), 0)["loss"]
        log_probs.append(-float(loss))
    assert scored("", last, 1) == log_probs


def test_a_norm_contains_elements_that_are_much_smaller_than_the_largest():
    elements = np.full([2048, 2048], 3.8e-6, np.float32)
    elements[7, 9] = 1.0
    program = t2tp.Program(
        lambda mesh, features: {"norm": global_norm([features["x"]])},
        {"x": t2tp.Feature("batch:2048;d_model:2048", tf.float32)},
        layout=Layout("data:2", "batch:data", exact_sums=8),
    )
    wanted = np.linalg.norm(elements.astype(np.float64))
    np.testing.assert_allclose(program({"x": elements})["norm"], wanted, rtol=1e-7)


def test_cumulative_sums_of_floats_along_a_split_dimension_are_refused():
    def program(dtype, rule):
        return AbstractProgram(
            lambda mesh, given: {"y": mtf.cumsum(given["x"], given["x"].shape.dims[1])},
            {"x": t2tp.Feature("batch:16;vocab:64", dtype)},
            layout=Layout("x:2", rule, exact_sums=8),
        )

    program(tf.float32, "batch:x"), program(tf.int32, "vocab:x")
    with pytest.raises(t2tp.LayoutError, match="cumsum.*'vocab'"):
        program(tf.float32, "vocab:x")


REFUSED = [
    ({"mesh_shape": "seq:2;data:2"}, "'batch', 'data', before"),
    (
        {"mesh_shape": "seq:2", "attention_method": "blockwise", "max_length": 32},
        "attention_method=dense",
    ),
    ({"mesh_shape": "model:2", "layout": "d_model:model"}, "'d_model'"),
    ({"mesh_shape": "data:8", "parts": 4}, "4 parts"),
    ({"mesh_shape": "data:8", "microbatches": 2}, "'batch'"),
    ({"pipeline_schedule": "zero_bubble"}, "zero_bubble"),
    ({"pipeline_schedule": "csv"}, "order"),
    ({"mesh_shape": "model:4", "d_ff": 36}, "16 elements .* change d_ff"),
    ({"mesh_shape": "model:2", "optimizer": "adafactor"}, "adafactor"),
    ({"activation_dtype": "bfloat16"}, "bfloat16"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_other_layouts_are_refused_by_name(changes, words, tmp_path):
    if changes.get("pipeline_schedule"):
        changes = {"mesh_shape": "stage:2", "num_hidden_layers": 2, "microbatches": 2, **changes}
    if changes.get("pipeline_schedule") == "csv":
        path = tmp_path / "schedule.csv"
        path.write_text("F0,\nF1,F0\n,F1\n,B1\nB1,B0\nB0,\n")
        changes["pipeline_schedule"] = str(path)
    with pytest.raises(t2tp.LayoutError, match=words):
        program_of(**changes).trace()
