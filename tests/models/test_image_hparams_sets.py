"""The sets of the models of pictures: each builds its model, lays it out, and sets nothing in vain.

Graphs are built and variables are not made, so the largest set costs little.
"""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import mtf, registry
from t2tp.hparams.base import base_hparams
from t2tp.mesh.layout import Layout, parse_rules
from t2tp.mesh.on_paper import ProgramOnPaper
from tests.test_hparams_sets import RecordingHParams

MODELS = ("mlp", "mtf_resnet", "vit", "mtf_image_transformer")
SETS = [name for name in registry.list_hparams() if name.startswith(MODELS)]


def model_of(hparams_set):
    return next(model for model in MODELS if hparams_set.startswith(model))


def picture_shape(hparams_set, hparams):
    """Height, width and channels of the pictures that a set is for."""
    if "image_shape" in hparams.values():
        return hparams.image_shape
    if hparams_set in ("mlp_tiny", "vit_tiny", "mtf_resnet_tiny", "mtf_resnet_single"):
        return [8, 8, 1]
    is_small = model_of(hparams_set) == "mlp" or "cifar" in hparams_set
    return [32, 32, 3] if is_small else [224, 224, 3]


def features_of(hparams_set, hparams):
    batch = mtf.Dimension("batch", hparams.batch_size)
    names = ("height", "width", "channels")
    picture = mtf.Shape([batch, *map(mtf.Dimension, names, picture_shape(hparams_set, hparams))])
    features = {"weights": t2tp.Feature(mtf.Shape([batch]))}
    if model_of(hparams_set) == "mtf_image_transformer":
        return {**features, "targets": t2tp.Feature(picture, tf.int32)}
    targets = t2tp.Feature(mtf.Shape([batch]), tf.int32)
    return {**features, "inputs": t2tp.Feature(picture), "targets": targets}


def program_of(hparams_set, hparams, mesh_shape):
    model = registry.model(model_of(hparams_set))(hparams, {"targets": 16})

    def step(mesh, features):
        return {"loss": model.loss(mesh, features, training=True).loss}

    features = features_of(hparams_set, hparams)
    return ProgramOnPaper(step, features, mesh_shape=mesh_shape, layout=hparams.layout)


def test_there_are_sets_of_every_model():
    assert {model_of(hparams_set) for hparams_set in SETS} == set(MODELS)
    assert len(SETS) >= 25


@pytest.mark.parametrize("hparams_set", SETS)
def test_each_set_is_laid_out_on_its_own_mesh_which_has_no_idle_axis(hparams_set):
    hparams = registry.hparams(hparams_set)
    program = program_of(hparams_set, hparams, hparams.mesh_shape)
    shapes = shapes_of(program)
    used = {axis.name for dim in dims_of(shapes) if (axis := program.layout.axis_of(dim))}
    assert used == {axis.name for axis in program.layout.mesh_shape.dims}


@pytest.mark.parametrize("hparams_set", SETS)
def test_every_rule_of_a_set_splits_something(hparams_set):
    """On a mesh with all the axes that its layout knows, of two processors each."""
    hparams = registry.hparams(hparams_set)
    axes = dict.fromkeys(axis for _, axis in parse_rules(hparams.layout))
    mesh_shape = ";".join(f"{axis}:2" for axis in axes)
    shapes = shapes_of(program_of(hparams_set, hparams, mesh_shape))
    assert Layout(mesh_shape, hparams.layout).warnings(shapes) == []


def shapes_of(program):
    graph, _ = program.graph()
    return [tensor.shape for op in graph.operations for tensor in op.outputs]


def dims_of(shapes):
    return {name for shape in shapes for name in shape.dimension_names}


@functools.cache
def read_by(model):
    """What a model reads of a set, with one kind of attention or another."""
    hparams_set = next(name for name in SETS if model_of(name) == model)
    read = set()
    kinds = ["full", "local_1d", "local_2d"] if model == "mtf_image_transformer" else [None]
    for kind in kinds:
        hparams = registry.hparams(hparams_set)
        if kind:
            hparams.attention_type = kind
        recording = RecordingHParams(hparams)
        program_of(hparams_set, recording, "")
        read |= recording._asked_for
    return read


@pytest.mark.parametrize("hparams_set", SETS)
def test_every_hparam_that_a_set_declares_is_read(hparams_set):
    declared = set(registry.hparams(hparams_set).values()) - set(base_hparams().values())
    assert declared - read_by(model_of(hparams_set)) == set()
