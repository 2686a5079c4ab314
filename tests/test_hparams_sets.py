"""Registered hparams sets: each builds its model, lays it out, and declares nothing in vain.

Graphs are built and variables are not made, so the largest set costs little.
"""

from __future__ import annotations

import functools
import re

import pytest
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import registry
from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout
from t2tp.optim import apply_gradients
from t2tp.optim.schedules import learning_rate

SETS = registry.list_hparams()
MESHES = ["", "data:4", "model:2", "data:2;model:2", "data:8;model:2"]
VOCAB_SIZE, TRAIN_STEPS = 8000, 1000
# What the trainer makes the features and the mesh of.
READ_BY_THE_TRAINER = {"batch_size", "max_length", "mesh_shape", "layout"}


class RecordingHParams(HParams):
    """An HParams that remembers which values were asked for."""

    def __init__(self, hparams: HParams):
        super().__init__(**hparams.values())
        object.__setattr__(self, "_asked_for", set())

    def get(self, name):
        self._asked_for.add(name)
        return super().get(name)


def model_of(hparams_set):
    """A set is named after its model: transformer_lm_tiny after transformer_lm."""
    return max((m for m in registry.list_models() if hparams_set.startswith(m)), key=len)


def features_of(hparams):
    shape = f"batch:{hparams.batch_size};length:{hparams.max_length}"
    names = ("targets", "targets_segmentation", "targets_position")
    return {name: t2tp.Feature(shape, tf.int32) for name in names}


def build(hparams_set, hparams):
    """The graph of a training step, which is the same for all meshes."""
    model = registry.model(model_of(hparams_set))(hparams, VOCAB_SIZE)

    def step(mesh, features):
        out = model.loss(mesh, features, training=True)
        return {"loss": out.loss, **apply_gradients(out.loss, mesh, hparams, TRAIN_STEPS)}

    program = t2tp.Program(lambda mesh, features: {}, features_of(hparams))
    program._step_fn = step
    return program._build_for_shapes()


@functools.cache
def built(hparams_set):
    return build(hparams_set, registry.hparams(hparams_set))


def test_there_are_sets_of_every_model():
    assert {model_of(hparams_set) for hparams_set in SETS} == set(registry.list_models())


@pytest.mark.parametrize("mesh_shape", MESHES)
@pytest.mark.parametrize("hparams_set", SETS)
def test_each_set_lays_its_model_out(hparams_set, mesh_shape):
    hparams = registry.hparams(hparams_set)
    program = t2tp.Program(
        lambda mesh, features: {},
        features_of(hparams),
        mesh_shape=mesh_shape,
        layout=hparams.layout,
        cluster=t2tp.Cluster(("cpu:0",) * Layout(mesh_shape).size),
    )
    program._check(built(hparams_set))


@pytest.mark.parametrize("hparams_set", SETS)
def test_no_rule_of_a_sets_layout_is_without_effect(hparams_set):
    layout = Layout("data:2;model:2", registry.hparams(hparams_set).layout)
    tensors = (t for op in built(hparams_set).graph.operations for t in op.outputs)
    assert layout.warnings(t.shape for t in tensors) == []


@pytest.mark.parametrize("hparams_set", SETS)
def test_every_hparam_of_a_set_is_read(hparams_set):
    """By one of the optimizers or learning-rate schedules, if by nothing else."""
    read = set(READ_BY_THE_TRAINER)
    for optimizer in registry.list_optimizers():
        hparams = registry.hparams(hparams_set)
        hparams.optimizer = optimizer
        hparams.weight_decay = 0.1 if optimizer == "adam" else 0.0
        hparams.num_hidden_layers = 1
        recording = RecordingHParams(hparams)
        build(hparams_set, recording)
        read |= recording._asked_for
    recording.learning_rate_schedule = "*".join(registry.list_learning_rate_schedules())
    t2tp.Program(lambda mesh, _: {"": learning_rate(mesh.step, recording, TRAIN_STEPS)}).trace()
    read |= recording._asked_for
    assert set(registry.hparams(hparams_set).values()) - read == set()


@pytest.mark.parametrize("hparams_set", ["transformer_lm_base", "transformer_lm_small"])
def test_a_set_has_the_parameters_that_its_description_says(hparams_set):
    description = getattr(t2tp.hparams.transformer_lm, hparams_set).__doc__
    millions = int(re.search(r"(\d+) million parameters besides the embedding", description)[1])
    variables = built(hparams_set).graph.trainable_variables
    rest = sum(v.size for v in variables if v.name not in ("embedding", "positions"))
    assert round(rest / 1e6) == millions
