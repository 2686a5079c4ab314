"""The image transformer's numbers: those of its description, in any layout and step by step."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.mesh.layout import LayoutError
from t2tp.models.image_transformer import MtfImageTransformer
from tests.models.small_images import (
    BATCH,
    assert_close,
    float64_params,
    loss_program,
    make_hparams,
)

LEVELS = 14  # Rounded up to 16.
SHAPE = (4, 8, 2)
LENGTH = math.prod(SHAPE)
SMALLER = {
    "image_shape": list(SHAPE),
    "d_model": 16,
    "d_ff": 32,
    "d_kv": 8,
    "num_hidden_layers": 2,
    "block_length": 8,
    "block_height": 2,
    "block_width": 4,
    "initializer_stddev": 1.0,
    "layer_prepostprocess_dropout": 0.0,
}
SPLIT = "batch:data;heads:model;d_ff:model;vocab:model;height:rows;width:columns;length:all"
CASES = [
    ("full", ""),
    ("full", "data:4"),
    ("full", "data:2;model:2"),
    ("local_1d", ""),
    ("local_1d", "model:4"),
    ("local_1d", "all:4"),
    ("local_1d", "data:2;all:2;model:2"),
    ("local_2d", ""),
    ("local_2d", "rows:2"),
    ("local_2d", "rows:2;columns:2"),
    ("local_2d", "data:2;columns:2;model:2"),
    ("local_2d", "data:2;model:2"),
]


def make(attention_type, **values):
    changes = {**SMALLER, "attention_type": attention_type, **values}
    return make_hparams("mtf_image_transformer_single", **changes)


@functools.cache
def make_batch():
    random = np.random.default_rng(0)
    return {
        "targets": random.integers(LEVELS, size=[BATCH, *SHAPE]).astype(np.int32),
        "weights": np.array([1.0] * (BATCH - 1) + [0.0], np.float32),
    }


def program_of(attention_type, mesh_shape="", training=True, **values):
    hparams = make(attention_type, **values)
    return loss_program(
        "mtf_image_transformer", hparams, make_batch(), mesh_shape, SPLIT, training, LEVELS
    )


def visible(attention_type):
    """[place, place]: which places each one sees, from the description."""
    place = np.arange(LENGTH)
    width = SHAPE[1] * SHAPE[2]
    if attention_type == "full":
        near = np.ones([LENGTH, LENGTH], bool)
    elif attention_type == "local_1d":
        block = place // SMALLER["block_length"]
        near = block[:, None] - block[None, :] <= 1
    else:
        row, column = place // width // 2, place % width // 4
        up, left = row[:, None] - row[None, :], column[:, None] - column[None, :]
        near = ((up == 1) & (abs(left) <= 1)) | ((up == 0) & (left >= 0) & (left <= 1))
    return near & (place[None, :] <= place[:, None])


def reference_logits(params, targets, attention_type):
    """Float64 [batch, length, vocab]."""

    def norm(x, scope):
        mean_square = tf.reduce_mean(x**2, axis=-1, keepdims=True)
        return x / tf.sqrt(mean_square + 1e-6) * params[f"{scope}/norm_scale"]

    before = np.pad(targets.reshape(-1, LENGTH)[:, :-1], [[0, 0], [1, 0]])
    positions = params["row_positions"][:, None] + params["column_positions"][None]
    x = tf.gather(params["embedding"], before) + tf.reshape(positions, [LENGTH, -1])
    for layer in range(SMALLER["num_hidden_layers"]):
        scope = f"layer_{layer:02d}/attention"
        normed = norm(x, scope)
        q, k, v = (tf.einsum("btd,dhk->bhtk", normed, params[f"{scope}/{n}"]) for n in "qkv")
        scores = tf.einsum("bhtk,bhmk->bhtm", q, k) / math.sqrt(q.shape[-1])
        weights = tf.nn.softmax(tf.where(visible(attention_type), scores, -math.inf))
        attended = tf.einsum("bhtm,bhmk->bhtk", weights, v)
        x += tf.einsum("bhtk,hkd->btd", attended, params[f"{scope}/output"])
        scope = f"layer_{layer:02d}/feed_forward"
        x += tf.nn.relu(norm(x, scope) @ params[f"{scope}/input"]) @ params[f"{scope}/output"]
    return tf.einsum("btd,vd->btv", norm(x, "final"), params["embedding"])


@functools.cache
def reference(attention_type):
    batch = make_batch()
    params = float64_params(program_of(attention_type))
    with tf.GradientTape() as tape:
        tape.watch(params)
        logits = reference_logits(params, batch["targets"], attention_type)
        flat = batch["targets"].reshape(BATCH, LENGTH)
        nll = -tf.gather(tf.nn.log_softmax(logits), flat, batch_dims=2)
        nll = tf.reduce_sum(nll * batch["weights"][:, None])
        loss = nll / (batch["weights"].sum() * LENGTH)
    values = {"loss": loss.numpy(), "nll": nll.numpy(), "logits": logits.numpy()}
    gradients = tape.gradient(loss, params)
    return values | {f"d_{n}": tf.convert_to_tensor(g).numpy() for n, g in gradients.items()}


@pytest.mark.parametrize(("attention_type", "mesh_shape"), CASES)
def test_any_layout_gives_the_loss_and_all_gradients_of_the_description(attention_type, mesh_shape):
    values = program_of(attention_type, mesh_shape)(make_batch())
    wanted = {name: x for name, x in reference(attention_type).items() if name != "logits"}
    assert set(values) == set(wanted) | {"tokens"}
    assert_close(values, wanted, 1e-5)


def test_recomputation_changes_nothing():
    plain, again = (
        program_of("local_2d", "rows:2", recompute=what, layer_prepostprocess_dropout=0.2)(
            make_batch()
        )
        for what in ("none", "layer")
    )
    for name in plain:
        np.testing.assert_array_equal(again[name], plain[name], err_msg=name)


def test_evaluation_counts_the_values_of_the_pictures_that_have_weight():
    values = program_of("local_1d", "all:4", training=False)(make_batch())
    assert set(values) == {"loss", "nll", "tokens", "correct"}
    assert values["tokens"] == (BATCH - 1) * LENGTH
    right = reference("local_1d")["logits"].argmax(-1) == make_batch()["targets"].reshape(
        BATCH, LENGTH
    )
    assert values["correct"] == right[:-1].sum()


def begin_program(attention_type, prefix_length, mesh_shape):
    def step(mesh, given):
        model = MtfImageTransformer(make(attention_type), {"targets": LEVELS})
        return model.begin(mesh, given, mtf.Dimension("memory_length", LENGTH))

    features = {"prefix": t2tp.Feature(f"batch:{BATCH};prefix_length:{prefix_length}", tf.int32)}
    return t2tp.Program(step, features, mesh_shape=mesh_shape, layout=SPLIT)


def step_program(attention_type, mesh_shape, batch):
    """Of batch dimensions such as "batch:8;beam:2"."""
    state = {
        f"layer_{layer:02d}/self/{name}": f"{batch};heads:4;memory_length:{LENGTH};d_kv:8"
        for layer in range(SMALLER["num_hidden_layers"])
        for name in "kv"
    }

    def step(mesh, given):
        model = MtfImageTransformer(make(attention_type), {"targets": LEVELS})
        symbols, positions = given.pop("symbols"), given.pop("positions")
        logits, after = model.step(mesh, symbols, positions, given)
        assert {name: x.shape for name, x in after.items()} == {
            name: x.shape for name, x in given.items()
        }
        return {"logits": logits, **after}

    features = {name: t2tp.Feature(shape) for name, shape in state.items()}
    features |= {name: t2tp.Feature(batch, tf.int32) for name in ("symbols", "positions")}
    return t2tp.Program(step, features, mesh_shape=mesh_shape, layout=SPLIT)


@pytest.mark.parametrize(
    ("attention_type", "mesh_shape"),
    [("full", ""), ("local_1d", "data:2;model:2"), ("local_2d", "model:2")],
)
def test_steps_give_the_logits_of_the_whole_picture(attention_type, mesh_shape):
    """From prefixes of unequal lengths, each row at its own place."""
    targets = make_batch()["targets"].reshape(BATCH, LENGTH)
    lengths = np.array([0, 1, 2, 3, 7, 19, 33, 40], np.int32)
    prefix = np.where(np.arange(40) < lengths[:, None], targets[:, :40], 0).astype(np.int32)
    state = dict(begin_program(attention_type, 40, mesh_shape)({"prefix": prefix}))
    program = step_program(attention_type, mesh_shape, f"batch:{BATCH}")
    wanted = reference(attention_type)["logits"]
    rows = np.arange(BATCH)
    for count in range(LENGTH - lengths.max()):
        places = lengths + count
        symbols = targets[rows, places - 1]  # At place 0 it is the last one, and does not matter.
        outputs = dict(program({"symbols": symbols, "positions": places, **state}))
        logits = outputs.pop("logits")
        assert_close({"logits": logits}, {"logits": wanted[rows, places]}, 1e-5)
        state = outputs


def test_steps_take_several_batch_dimensions():
    targets = make_batch()["targets"].reshape(BATCH, LENGTH)
    program = step_program("local_2d", "data:2", f"batch:{BATCH // 2};beam:2")
    state = {
        name: np.zeros([BATCH // 2, 2, 4, LENGTH, 8], np.float32)
        for name in (f"layer_{layer:02d}/self/{key}" for layer in range(2) for key in "kv")
    }
    wanted = reference("local_2d")["logits"]
    for place in range(20):
        symbols = targets[:, max(place - 1, 0)].reshape(-1, 2)
        positions = np.full_like(symbols, place)
        outputs = dict(program({"symbols": symbols, "positions": positions, **state}))
        logits = outputs.pop("logits").reshape(BATCH, -1)
        assert_close({"logits": logits}, {"logits": wanted[:, place]}, 1e-5)
        state = outputs


def test_pictures_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r'say --hparams="image_shape=\[4,8,2\]"'):
        program_of("full", image_shape=[8, 8, 1])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention_type": "local"}, "attention_type is 'local': did you mean"),
        ({"image_shape": [8, 8]}, r"must be \[height,width,channels\], not \[8, 8\]"),
        ({"attention_type": "local_1d", "block_length": 7}, "blocks of 7 do not divide .*length"),
    ],
)
def test_what_cannot_be_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        program_of(**{"attention_type": "full", **values})


def test_full_attention_of_a_split_sequence_is_refused():
    with pytest.raises(LayoutError, match="'length' split"):
        program_of("full", "all:2")


def test_decoding_needs_a_prefix_and_the_pictures_length():
    model = MtfImageTransformer(make("full"), {"targets": LEVELS})
    with pytest.raises(ValueError, match="begins with the feature `prefix`"):
        model.begin(None, {}, mtf.Dimension("length", LENGTH))
    prefix = {"prefix": None}
    with pytest.raises(ValueError, match="have 64 values, not 65: decode so many"):
        model.begin(None, prefix, mtf.Dimension("length", LENGTH + 1))
