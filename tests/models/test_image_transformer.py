"""The image transformer matches its reference in any layout, and when decoding step by step."""

import functools

import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.models.image_transformer import MtfImageTransformer
from tests.models.small_image_transformer import (
    LENGTH,
    LEVELS,
    SPLIT,
    make,
    make_batch,
    reference_logits,
)
from tests.models.small_images import BATCH, assert_close, float64_params, loss_program

CASES = [
    ("full", ""),
    ("full", "all:2"),
    ("full", "data:2;model:2"),
    ("local_1d", "all:4"),
    ("local_1d", "data:2;all:2;model:2"),
    ("local_2d", ""),
    ("local_2d", "rows:2;columns:2"),
    ("local_2d", "data:2;columns:2;model:2"),
]


def program_of(attention_type, mesh_shape="", training=True, **values):
    hparams = make(attention_type, **values)
    return loss_program(
        "mtf_image_transformer", hparams, make_batch(), mesh_shape, SPLIT, training, LEVELS
    )


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


@pytest.mark.slow
@pytest.mark.parametrize(("attention_type", "mesh_shape"), CASES)
def test_any_layout_gives_the_loss_and_all_gradients_of_the_description(attention_type, mesh_shape):
    values = program_of(attention_type, mesh_shape)(make_batch())
    wanted = {name: x for name, x in reference(attention_type).items() if name != "logits"}
    assert set(values) == set(wanted) | {"tokens"}
    assert_close(values, wanted, 1e-5)


def test_evaluation_counts_the_values_of_the_images_that_have_weight():
    values = program_of("local_1d", "all:4", training=False)(make_batch())
    assert set(values) == {"loss", "nll", "tokens", "correct"}
    assert values["tokens"] == (BATCH - 1) * LENGTH
    right = reference("local_1d")["logits"].argmax(-1) == make_batch()["targets"].reshape(
        BATCH, LENGTH
    )
    assert values["correct"] == right[:-1].sum()


REFUSED = [
    ({"image_shape": [8, 8, 1]}, r'say --hparams="image_shape=\[4,8,2\]"'),
    ({"image_shape": [8, 8]}, r"must be \[height,width,channels\], not \[8, 8\]"),
    ({"attention_type": "local_1d", "block_length": 7}, "blocks of 7 do not divide .*length"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_what_cannot_be_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        program_of(**{"attention_type": "full", **values})


def test_a_mesh_need_not_divide_the_levels():
    """Splits 14 levels over 3 processors."""
    over_three = make("full", mesh_shape="model:3", layout="vocab:model")
    fed = (make_batch(), "model:3", "vocab:model", True, LEVELS)
    program = loss_program("mtf_image_transformer", over_three, *fed)
    assert program.variables["embedding"].spec.shape.dims[0] == mtf.Dimension("vocab", LEVELS)
    assert_close(program(make_batch()), program_of("full")(make_batch()), 1e-5)


WRONG_PROMPTS = [
    ({}, LENGTH, "begins with the feature `prefix`"),
    ({"prefix": t2tp.Feature("batch:2;prefix_length:1", tf.int32)}, LENGTH + 1, "64 .*not 65"),
]


@pytest.mark.parametrize(("prefix", "length", "message"), WRONG_PROMPTS)
def test_decoding_needs_a_prefix_and_the_images_length(prefix, length, message):
    model = MtfImageTransformer(make("full"), {"targets": LEVELS})

    def step(mesh, features):
        return model.prefill(mesh, features, mtf.Dimension("length", length))

    with pytest.raises(ValueError, match=message):
        t2tp.Program(step, prefix)
