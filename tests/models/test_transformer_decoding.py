"""Decoding token by token gives the logits of the whole sequence."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.ops.scatter_update import scatter_update
from tests.models.small_transformers import BATCH, FAMILIES, LAYOUTS, LENGTH, VOCAB_SIZE, feature_of

NO_DROPS = {"moe_capacity_factor_eval": 8.0}
CASES = {
    "lm": ("lm", {}),
    "lm rotary grouped": ("lm", {"position": "rotary", "num_kv_heads": 2, "mlp": "swiglu"}),
    "lm relative post": ("lm", {"position": "relative", "norm_position": "post"}),
    "lm local multi-query": (
        "lm",
        {"attention_type": "local", "attention_window": 3, "num_kv_heads": 1, "use_bias": True},
    ),
    "lm untied sinusoidal": ("lm", {"position": "sinusoidal", "tie_embeddings": False}),
    "lm sinks, wide values": (
        "lm",
        {"attention_sinks": True, "d_v": 12, "attention_soft_cap": 2.0, "qk_norm": "projection"},
    ),
    "encdec": ("encdec", {}),
    "moe": ("moe", {**NO_DROPS, "moe_gating": "top_2"}),
    "moe_encdec": ("moe_encdec", NO_DROPS),
}
PREFIX_LENGTH = 4
# The number of given tokens of each row; a row without any begins at position 0.
GIVEN = np.array([1, 2, 3, 4, 4, 3, 0, 0], np.int32)


@functools.cache
def sequences():
    """Returns rows without padding, and inputs of several lengths, some longer than the targets."""
    generator = np.random.default_rng(1)
    targets = generator.integers(1, VOCAB_SIZE, [BATCH, LENGTH]).astype(np.int32)
    sizes = generator.integers(3, LENGTH + 4, [BATCH, 1])
    segments = (np.arange(LENGTH + 3)[None] < sizes).astype(np.int32)
    inputs = generator.integers(1, VOCAB_SIZE, segments.shape).astype(np.int32) * segments
    return {"targets": targets, "inputs": inputs, "inputs_segmentation": segments}


def inputs_of(name):
    if "encdec" not in name:
        return {}
    return {n: sequences()[n] for n in ("inputs", "inputs_segmentation")}


@functools.cache
def whole_logits(case):
    """Returns the logits of one forward pass, [batch, length, vocab]."""
    name, changes = CASES[case]
    targets = sequences()["targets"]
    fed = {"targets": targets, **inputs_of(name)}

    def step(mesh, features):
        (length,) = features["targets"].shape.dims[1:]
        places = mtf.broadcast(mtf.range(mesh, length, tf.int32), features["targets"].shape)
        one_segment = mtf.ones_like(features["targets"])
        given = {**features, "targets_position": places, "targets_segmentation": one_segment}
        return {"logits": FAMILIES[name].make(**changes).logits(mesh, given)}

    features = {n: feature_of(x, f"{n.partition('_')[0]}_length") for n, x in fed.items()}
    return t2tp.Program(step, features)(fed)["logits"]


def step_program(name, changes, mesh_shape, layout, beam, with_prefix=True):
    """Returns a program with the logits of decode steps, [batch, (beam), steps, vocab]."""
    fed = {"targets": sequences()["targets"], "given": GIVEN, **inputs_of(name)}
    features = {n: feature_of(x, f"{n.partition('_')[0]}_length") for n, x in fed.items()}

    def step(mesh, features):
        model = FAMILIES[name].make(**changes)
        targets, given = features["targets"], features["given"]
        rows, length = targets.shape.dims
        read = {n: features[n] for n in inputs_of(name)}
        if with_prefix:
            prefix = mtf.slice(targets, 0, PREFIX_LENGTH, length.name)
            prefix = mtf.rename_dimension(prefix, length.name, "prefix_length")
            places = mtf.range(mesh, prefix.shape.dims[1], tf.int32)
            read["prefix"] = prefix * mtf.cast(mtf.less(places, given), tf.int32)
        state = model.prefill(mesh, read, mtf.Dimension("decode_length", LENGTH))
        batch = [rows]
        if beam:
            batch.append(mtf.Dimension("beam", beam))
            state = {
                n: mtf.broadcast(x, mtf.Shape([*batch, *x.shape.dims[1:]]))
                for n, x in state.items()
            }
        begin = mtf.broadcast(given if with_prefix else given * 0, mtf.Shape(batch))
        steps = mtf.Dimension("steps", LENGTH)
        vocab = mtf.Dimension("vocab", VOCAB_SIZE)

        def body(number, logits, *values):
            at = mtf.minimum(begin + number, LENGTH - 1)
            before = mtf.gather(targets, mtf.maximum(at - 1, 0), length, mtf.Shape(batch))
            here, new = model.decode_step(mesh, before, at, dict(zip(state, values, strict=True)))
            logits = scatter_update(logits, here, mtf.broadcast(number, mtf.Shape(batch)), steps)
            return [number + 1, logits, *(new[name] for name in state)]

        _, logits, *_ = mtf.while_loop(
            lambda number, *_: mtf.less(number, LENGTH),
            body,
            [
                mtf.zeros(mesh, [], tf.int32),
                mtf.zeros(mesh, mtf.Shape([*batch, steps, vocab]), tf.float32),
                *state.values(),
            ],
        )
        return {"logits": logits}

    return t2tp.Program(step, features, mesh_shape=mesh_shape, layout=layout), fed


def assert_steps_are(wanted, program, fed, beam=0, given=GIVEN):
    got = program(fed)["logits"]
    at = np.minimum(given[:, None] + np.arange(LENGTH), LENGTH - 1)
    want = wanted[np.arange(BATCH)[:, None], at]
    want = np.repeat(want[:, None], beam, axis=1) if beam else want
    np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_steps_after_prefixes_of_any_length_give_the_logits_of_the_whole(case):
    """Every second case has beams."""
    name, changes = CASES[case]
    beam = 2 * (list(CASES).index(case) % 2)
    mesh_shape, layout = LAYOUTS["both"]
    if changes.get("num_kv_heads") == 1:
        layout = layout.replace("kv_heads:model;", "")
    program, fed = step_program(name, changes, mesh_shape, layout, beam)
    assert_steps_are(whole_logits(case), program, fed, beam)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["lm", "lm relative post", "moe_encdec"])
def test_prefix_inputs_and_what_is_remembered_may_be_split_along_the_length(case):
    name, changes = CASES[case]
    layout = "prefix_length:a;decode_length:a;inputs_length:b"
    program, fed = step_program(name, changes, "a:2;b:3", layout, 0)
    assert_steps_are(whole_logits(case), program, fed)


def test_an_encoder_decoder_begins_without_a_prefix():
    program, fed = step_program("encdec", {}, "", "", 0, with_prefix=False)
    wanted = whole_logits("encdec")
    assert_steps_are(wanted, program, fed, given=np.zeros_like(GIVEN))


def test_the_cache_is_laid_out_as_the_heads_and_the_batch_are():
    """A decode step has the all-reduces of the forward pass of one position; the cache adds none.

    A step has one all-reduce for the embedding and one for each of the two blocks. `prefill` skips
    the blocks after the last layer's keys and values, so with one layer it has only the all-reduce
    of the embedding.
    """
    program, _ = step_program("lm", {}, *LAYOUTS["both"], 0)
    assert {key: n for key, (n, _) in program.collectives().items()} == {
        ("allreduce", ("model",)): 1 + 3
    }
