"""Every model that writes: decodes on any layout, beside a float64 model that reads everything
anew for each symbol."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import tensorflow as tf

from t2tp import registry
from t2tp.decoding import DecodeOptions, Decoder, Request
from t2tp.models.autoregressive import AutoregressiveModel
from t2tp.models.image_transformer import MtfImageTransformer
from tests.models import small_image_transformer as image
from tests.models.reference_transformer import Reference
from tests.models.small_images import float64_params
from tests.models.small_images import loss_program as image_loss_program
from tests.models.small_transformers import FAMILIES, LAYOUTS, LENGTH, VOCAB_SIZE, loss_program

END = 1
# Each expert has room for all, as it has in decoding.
NO_DROPS = {"moe_capacity_factor_train": 8.0}
CHANGES = {"lm": {}, "encdec": {}, "moe": NO_DROPS, "moe_encdec": NO_DROPS}
PREFIXES = [[5, 6, 7], [], [2] * 9, [29]]
INPUTS = [[4, 5, 1], [1], [9, 8, 7, 6, 1], [2] * 7]
# How a picture's places see each other, and a mesh.
PICTURES = {
    "one device": ("full", ""),
    "data": ("full", "data:4"),
    "tensor": ("full", "model:2"),
    "both": ("local_2d", "data:2;model:2"),
    "length-sharded": ("local_1d", "all:4"),
    "length-sharded and both": ("local_1d", "data:2;all:2;model:2"),
    "rows": ("local_2d", "rows:2"),
    "spatial": ("local_2d", "rows:2;columns:2"),
}
GIVEN = [0, 5, 9, 1]  # values of each picture


def some_slow(layouts: Iterable[str]) -> list:
    """All of them, as parameters of a test."""
    quick = ("both", "length-sharded", "spatial")
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in layouts]


def requests(name: str) -> list[Request]:
    inputs = INPUTS if "encdec" in name else [None] * len(PREFIXES)
    return [Request(prefix, row) for prefix, row in zip(PREFIXES, inputs, strict=True)]


def decoder(name: str, options: str, layout: str, xla: bool | None = None) -> Decoder:
    chosen = DecodeOptions.parse(f"{options},batch_size={len(PREFIXES)}")
    mesh_shape, rules = LAYOUTS[layout]
    model = FAMILIES[name].make(**CHANGES[name])
    return Decoder.of_model(model, chosen, mesh_shape=mesh_shape, layout=rules, xla=xla)


def most_probable(
    logits_of: Callable[[np.ndarray], tf.Tensor],
    prefixes: list[list[int]],
    length: int,
    count: int,
    end: int,
) -> list[list[int]]:
    """What greedy decoding writes, by its definition: all logits again for each symbol.

    Args:
      logits_of: symbols [rows, length] -> [rows, length, at least `count`].
      prefixes: how each row begins.
      length: of the rows.
      count: how many symbols there are.
      end: what ends a row.
    """
    rows = [list(prefix) for prefix in prefixes]
    for size in range(length):
        symbols = np.array([row + [0] * (length - len(row)) for row in rows])
        logits = logits_of(symbols).numpy()
        for row, logits_of_row in zip(rows, logits, strict=True):
            if len(row) == size and end not in row:
                row.append(int(logits_of_row[size, :count].argmax()))
    written = [row[len(prefix) :] for row, prefix in zip(rows, prefixes, strict=True)]
    return [row[: row.index(end)] if end in row else row for row in written]


@functools.cache
def wanted(name: str) -> list[list[int]]:
    family = FAMILIES[name]
    params = float64_params(loss_program(family, with_gradients=False))
    inputs = np.array([row + [0] * (LENGTH - len(row)) for row in INPUTS])
    places = np.tile(np.arange(LENGTH), (len(PREFIXES), 1))
    fed = {"inputs": inputs, "inputs_segmentation": np.sign(inputs), "inputs_position": places}
    one_segment = np.ones_like(places)

    def logits(symbols):
        made = Reference(params, family.hparams(**CHANGES[name]))
        read = made.encoder_decoder if "encdec" in name else made.language_model
        of_targets = {"targets_segmentation": one_segment, "targets_position": places}
        return read({**fed, **of_targets, "targets": symbols})

    return most_probable(logits, PREFIXES, LENGTH, VOCAB_SIZE, END)


@pytest.mark.parametrize("layout", some_slow(LAYOUTS))
@pytest.mark.parametrize("name", CHANGES)
def test_greedy_decodes_are_those_of_the_description(name, layout):
    found = decoder(name, "beam_size=1", layout)(requests(name))
    assert [row[0].symbols for row in found] == wanted(name)
    assert len({tuple(symbols) for symbols in wanted(name)}) == len(PREFIXES)


@pytest.mark.parametrize("layout", some_slow(["both", "context and both", "experts"]))
@pytest.mark.parametrize("name", CHANGES)
def test_greedy_decodes_are_the_same_where_xla_compiles_them(name, layout):
    found = decoder(name, "beam_size=1", layout, xla=True)(requests(name))
    assert [row[0].symbols for row in found] == wanted(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("how", ["beam_size=3,return_beams=true", "temperature=1"])
def test_any_layout_gives_the_same_beams_and_draws(how, name):
    options = f"{how},extra_length=6"
    alone = decoder(name, options, "one device")(requests(name))
    for layout, xla in (
        ("data", None),
        ("tensor", None),
        ("both", None),
        ("both", True),
        ("experts", None),
    ):
        split = decoder(name, options, layout, xla)(requests(name))
        for ours, theirs in zip(split, alone, strict=True):
            assert [h.symbols for h in ours] == [h.symbols for h in theirs]
            scores = [h.score for h in theirs]
            np.testing.assert_allclose([h.score for h in ours], scores, rtol=1e-4, atol=1e-4)


def image_decoder(
    options: str, attention_type: str, mesh_shape: str, xla: bool | None = None
) -> Decoder:
    model = MtfImageTransformer(image.make(attention_type), {"targets": image.LEVELS})
    chosen = DecodeOptions.parse(f"{options},eos_id=-1,batch_size={len(GIVEN)}")
    return Decoder.of_model(model, chosen, mesh_shape=mesh_shape, layout=image.SPLIT, xla=xla)


def begun_pictures() -> list[list[int]]:
    values = np.random.default_rng(0).integers(image.LEVELS, size=[len(GIVEN), image.LENGTH])
    return [row[:size].tolist() for row, size in zip(values, GIVEN, strict=True)]


@functools.cache
def wanted_pictures(attention_type: str) -> list[list[int]]:
    shape = (len(GIVEN), *image.SHAPE)
    batch = {"targets": np.zeros(shape, np.int32), "weights": np.ones(len(GIVEN), np.float32)}
    hparams, levels = image.make(attention_type), image.LEVELS
    program = image_loss_program("mtf_image_transformer", hparams, batch, levels=levels)
    params = float64_params(program)
    return most_probable(
        lambda values: image.reference_logits(params, values, attention_type),
        begun_pictures(),
        image.LENGTH,
        levels,
        end=-1,
    )


def greedy_pictures(layout: str, xla: bool | None = None) -> list[list[int]]:
    attention_type, mesh_shape = PICTURES[layout]
    begun = [Request(row, limit=image.LENGTH - len(row)) for row in begun_pictures()]
    found = image_decoder("beam_size=1", attention_type, mesh_shape, xla)(begun)
    return [row[0].symbols for row in found]


@pytest.mark.parametrize("layout", some_slow(PICTURES))
def test_greedy_pictures_are_those_of_the_description(layout):
    assert greedy_pictures(layout) == wanted_pictures(PICTURES[layout][0])


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["length-sharded and both", "spatial"])
def test_greedy_pictures_are_the_same_where_xla_compiles_them(layout):
    assert greedy_pictures(layout, xla=True) == wanted_pictures(PICTURES[layout][0])


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["length-sharded", "spatial"])
def test_any_layout_draws_the_same_pictures(layout):
    attention_type, mesh_shape = PICTURES[layout]
    whole = [Request(limit=image.LENGTH)] * len(GIVEN)
    alone = image_decoder("temperature=1", attention_type, "")(whole)
    split = image_decoder("temperature=1", attention_type, mesh_shape)(whole)
    assert [row[0].symbols for row in split] == [row[0].symbols for row in alone]


def test_every_model_that_writes_is_here():
    models = [registry.model(name) for name in registry.list_models()]
    ours = {m for m in models if m.__module__.startswith("t2tp.")}
    tried = {type(FAMILIES[name].make()) for name in CHANGES} | {MtfImageTransformer}
    assert {m for m in ours if issubclass(m, AutoregressiveModel)} == tried
