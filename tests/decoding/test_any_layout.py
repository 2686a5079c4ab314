"""Every autoregressive model decodes on any layout."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from t2tp import registry
from t2tp.decoding import DecodeOptions, Decoder, Hypothesis, Request
from t2tp.models.autoregressive import AutoregressiveModel
from t2tp.models.image_transformer import MtfImageTransformer
from tests.models import small_image_transformer as image
from tests.models.small_images import float64_params
from tests.models.small_images import loss_program as image_loss_program
from tests.models.small_transformers import FAMILIES, LAYOUTS

# Experts have room for all tokens, as in decoding.
NO_DROPS = {"moe_capacity_factor_train": 8.0}
CHANGES = {"lm": {}, "encdec": {}, "moe": NO_DROPS, "moe_encdec": NO_DROPS}
PREFIXES = [[5, 6, 7], [], [2] * 9, [29]]
INPUTS = [[4, 5, 1], [1], [9, 8, 7, 6, 1], [2] * 7]
# Results are compared with results on one device. One family per layout: all pairs would take
# minutes and find nothing more.
GREEDY = "beam_size=1"
BEAMS = "beam_size=3,return_beams=true,extra_length=6"
SAMPLING = "temperature=1,extra_length=6"
CASES = [
    (GREEDY, "lm", "both", None),
    (GREEDY, "lm", "three axes", None),
    (GREEDY, "encdec", "features", None),
    (GREEDY, "encdec", "context and both", None),
    (GREEDY, "encdec", "one device", True),
    (GREEDY, "moe", "experts", None),
    (GREEDY, "moe", "one device", True),
    (GREEDY, "moe_encdec", "data", None),
    (BEAMS, "encdec", "tensor", None),
    (BEAMS, "lm", "one device", True),
    (BEAMS, "moe", "experts", None),
    (SAMPLING, "lm", "both", None),
    (SAMPLING, "lm", "one device", True),
    (SAMPLING, "moe_encdec", "data", None),
]
# The attention type of an image model, and a mesh.
IMAGES = {
    "data and tensor": ("full", "data:2;model:2"),
    "length-sharded and both": ("local_1d", "data:2;all:2;model:2"),
    "both": ("local_2d", "data:2;model:2"),
    "spatial": ("local_2d", "rows:2;columns:2"),
}
GIVEN = [0, 5, 9, 1]  # the given beginning of each image


def requests(name: str) -> list[Request]:
    inputs = INPUTS if "encdec" in name else [None] * len(PREFIXES)
    return [Request(prefix, row) for prefix, row in zip(PREFIXES, inputs, strict=True)]


def decoder(name: str, options: str, layout: str, xla: bool | None = None) -> Decoder:
    chosen = DecodeOptions.parse(f"{options},batch_size={len(PREFIXES)}")
    mesh_shape, rules = LAYOUTS[layout]
    model = FAMILIES[name].make(**CHANGES[name])
    return Decoder.from_model(model, chosen, mesh_shape=mesh_shape, layout=rules, xla=xla)


@functools.cache
def on_one_device(name: str, options: str) -> list[list[Hypothesis]]:
    return decoder(name, options, "one device")(requests(name))


@pytest.mark.slow
@pytest.mark.parametrize(("options", "name", "layout", "xla"), CASES)
def test_any_layout_gives_the_same_texts(options, name, layout, xla):
    alone = on_one_device(name, options)
    split = decoder(name, options, layout, xla)(requests(name))
    for ours, theirs in zip(split, alone, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        scores = [h.score for h in theirs]
        np.testing.assert_allclose([h.score for h in ours], scores, rtol=1e-4, atol=1e-4)


def image_decoder(options: str, attention_type: str, mesh_shape: str) -> Decoder:
    model = MtfImageTransformer(image.make(attention_type), {"targets": image.LEVELS})
    chosen = DecodeOptions.parse(f"{options},eos_id=-1,batch_size={len(GIVEN)}")
    return Decoder.from_model(model, chosen, mesh_shape=mesh_shape, layout=image.SPLIT)


@functools.cache
def image_params(attention_type: str) -> dict[str, tf.Tensor]:
    batch = image.make_batch(len(GIVEN))
    hparams, levels = image.make(attention_type), image.LEVELS
    program = image_loss_program("mtf_image_transformer", hparams, batch, "", "", False, levels)
    return float64_params(program)


@pytest.mark.slow
@pytest.mark.parametrize("layout", IMAGES)
def test_greedy_images_are_those_of_the_description(layout):
    attention_type, mesh_shape = IMAGES[layout]
    values = np.random.default_rng(0).integers(image.LEVELS, size=[len(GIVEN), image.LENGTH])
    begun = [row[:size].tolist() for row, size in zip(values, GIVEN, strict=True)]
    requests = [Request(row, limit=image.LENGTH - len(row)) for row in begun]
    found = image_decoder("beam_size=1", attention_type, mesh_shape)(requests)
    images = np.array(
        [[*row, *written.tokens] for row, (written,) in zip(begun, found, strict=True)]
    )
    logits = image.reference_logits(image_params(attention_type), images, attention_type)
    best = logits[..., : image.LEVELS].numpy().argmax(-1)
    for row, chosen, size in zip(images, best, GIVEN, strict=True):
        assert row[size:].tolist() == chosen[size:].tolist()


def test_every_model_that_writes_is_here():
    models = [registry.model(name) for name in registry.list_models()]
    ours = {m for m in models if m.__module__.startswith("t2tp.")}
    tried = {type(FAMILIES[name].make()) for name in CHANGES} | {MtfImageTransformer}
    assert {m for m in ours if issubclass(m, AutoregressiveModel)} == tried
