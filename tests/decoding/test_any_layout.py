"""Every autoregressive model decodes on any layout.

The results are compared with a float64 model that reads the whole row.
"""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from t2tp import registry
from t2tp.decoding import DecodeOptions, Decoder, Hypothesis, Request
from t2tp.models.autoregressive import AutoregressiveModel
from t2tp.models.image_transformer import MtfImageTransformer
from tests.models import small_image_transformer as image
from tests.models.reference_transformer import Reference
from tests.models.small_images import float64_params
from tests.models.small_images import loss_program as image_loss_program
from tests.models.small_transformers import FAMILIES, LAYOUTS, LENGTH, VOCAB_SIZE, loss_program

END = 1
# Experts have room for all tokens, as in decoding.
NO_DROPS = {"moe_capacity_factor_train": 8.0}
CHANGES = {"lm": {}, "encdec": {}, "moe": NO_DROPS, "moe_encdec": NO_DROPS}
PREFIXES = [[5, 6, 7], [], [2] * 9, [29]]
INPUTS = [[4, 5, 1], [1], [9, 8, 7, 6, 1], [2] * 7]
# One family per layout: all pairs would take minutes and find nothing more.
GREEDY = [
    ("lm", "both"),
    ("lm", "three axes"),
    ("encdec", "features"),
    ("encdec", "context and both"),
    ("moe", "one device"),
    ("moe", "experts"),
    ("moe_encdec", "data"),
]
COMPILED = ["encdec", "moe"]
# Results of beam search and sampling are compared with results on one device.
BEAMS = "beam_size=3,return_beams=true"
SAMPLING = "temperature=1"
SEARCHED = [
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


def assert_greedy(
    found: list[list[Hypothesis]],
    logits_of: Callable[[np.ndarray], tf.Tensor],
    prefixes: list[list[int]],
    length: int,
    end: int,
) -> None:
    """Checks that each token, and each end, is the most probable one after the tokens before it.

    Args:
      found: the decoded hypotheses.
      logits_of: tokens [rows, length] -> logits [rows, length, vocab without padding].
      prefixes: the given beginning of each row.
      length: length of the rows.
      end: the token that ends a row.
    """
    written = [row[0].tokens for row in found]
    rows = [[*prefix, *tokens] for prefix, tokens in zip(prefixes, written, strict=True)]
    padded = np.array([row + [0] * (length - len(row)) for row in rows])
    best = logits_of(padded).numpy().argmax(-1)
    for prefix, tokens, chosen in zip(prefixes, written, best, strict=True):
        expected = [*tokens, end][: length - len(prefix)]
        assert chosen[len(prefix) :][: len(expected)].tolist() == expected
    assert len({tuple(tokens) for tokens in written}) == len(written)


@functools.cache
def params(name: str) -> dict[str, tf.Tensor]:
    return float64_params(loss_program(FAMILIES[name], with_gradients=False))


def assert_greedy_text(found: list[list[Hypothesis]], name: str) -> None:
    inputs = np.array([row + [0] * (LENGTH - len(row)) for row in INPUTS])
    positions = np.tile(np.arange(LENGTH), (len(PREFIXES), 1))
    features = {
        "inputs": inputs,
        "inputs_segmentation": np.sign(inputs),
        "inputs_position": positions,
        "targets_segmentation": np.ones_like(positions),
        "targets_position": positions,
    }

    def logits(tokens):
        reference = Reference(params(name), FAMILIES[name].hparams(**CHANGES[name]))
        read = reference.encoder_decoder if "encdec" in name else reference.language_model
        return read({**features, "targets": tokens})[..., :VOCAB_SIZE]

    assert_greedy(found, logits, PREFIXES, LENGTH, END)


@pytest.mark.parametrize(("name", "layout"), GREEDY)
def test_greedy_decodes_are_those_of_the_description(name, layout):
    assert_greedy_text(decoder(name, "beam_size=1", layout)(requests(name)), name)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.slow
def test_greedy_decodes_are_the_same_where_xla_compiles_them(name):
    assert_greedy_text(decoder(name, "beam_size=1", "one device", xla=True)(requests(name)), name)


@functools.cache
def on_one_device(name: str, options: str) -> list[list[Hypothesis]]:
    return decoder(name, options, "one device")(requests(name))


@pytest.mark.slow
@pytest.mark.parametrize(("how", "name", "layout", "xla"), SEARCHED)
def test_any_layout_gives_the_same_beams_and_samples(how, name, layout, xla):
    options = f"{how},extra_length=6"
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


def begun_images() -> list[list[int]]:
    values = np.random.default_rng(0).integers(image.LEVELS, size=[len(GIVEN), image.LENGTH])
    return [row[:size].tolist() for row, size in zip(values, GIVEN, strict=True)]


@functools.cache
def image_params(attention_type: str) -> dict[str, tf.Tensor]:
    batch = image.make_batch(len(GIVEN))
    hparams, levels = image.make(attention_type), image.LEVELS
    program = image_loss_program("mtf_image_transformer", hparams, batch, "", "", False, levels)
    return float64_params(program)


@pytest.mark.parametrize("layout", IMAGES)
def test_greedy_images_are_those_of_the_description(layout):
    attention_type, mesh_shape = IMAGES[layout]
    begun = begun_images()
    requests = [Request(row, limit=image.LENGTH - len(row)) for row in begun]
    found = image_decoder("beam_size=1", attention_type, mesh_shape)(requests)

    def logits(values):
        all_logits = image.reference_logits(image_params(attention_type), values, attention_type)
        return all_logits[..., : image.LEVELS]

    assert_greedy(found, logits, begun, image.LENGTH, end=-1)


def test_any_layout_samples_the_same_images():
    attention_type, mesh_shape = IMAGES["spatial"]
    requests = [Request(limit=image.LENGTH)] * len(GIVEN)
    alone = image_decoder("temperature=1", attention_type, "")(requests)
    split = image_decoder("temperature=1", attention_type, mesh_shape)(requests)
    assert [row[0].tokens for row in split] == [row[0].tokens for row in alone]


def test_every_model_that_writes_is_here():
    models = [registry.model(name) for name in registry.list_models()]
    ours = {m for m in models if m.__module__.startswith("t2tp.")}
    tried = {type(FAMILIES[name].make()) for name in CHANGES} | {MtfImageTransformer}
    assert {m for m in ours if issubclass(m, AutoregressiveModel)} == tried
