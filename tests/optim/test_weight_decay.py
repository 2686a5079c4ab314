"""In every model, weight decay applies only to matrices and embeddings."""

import re

import pytest

from t2tp import mtf, registry
from t2tp.building.mesh import declared
from t2tp.optim.optimizer import weight_decays
from t2tp.program.abstract_program import AbstractProgram
from tests.models.any_model import EVERY, TRANSFORMERS, small_model

NOT_DECAYED = re.compile(r"shift$|share$|bias$|norm_scale$|norm_offset$")
ALL_BIASES = {"use_bias": True, "norm_type": "layer", "position": "relative"}


def trainable_variables(model, features):
    def step(mesh, features):
        return {"loss": model.loss(mesh, features, training=True).loss}

    return AbstractProgram(step, features).graph()[0].trainable_variables


@pytest.mark.parametrize("name", EVERY)
def test_biases_and_norms_do_not_decay(name):
    changes = ALL_BIASES if name in TRANSFORMERS else {"qkv_bias": True} if name == "vit" else {}
    model, _, features = small_model(name, **changes)
    variables = trainable_variables(model, features)
    assert all(declared(var).role for var in variables)
    decays = weight_decays(variables, 0.5)
    for var, decay in zip(variables, decays, strict=True):
        assert (decay == 0.0) == bool(NOT_DECAYED.search(var.name)), var.name
        assert list(declared(var).role.dims) == list(var.shape.dims)
    assert 0.0 in decays


def test_every_registered_model_is_among_them():
    models = {registry.model(name) for name in registry.list_models()}
    ours = {model for model in models if model.__module__.startswith("t2tp.models.")}
    assert {type(small_model(name)[0]) for name in EVERY} == ours


def test_a_variable_without_a_role_decays_if_it_has_two_dimensions():
    a, b = mtf.Dimension("a", 2), mtf.Dimension("b", 3)

    def step(mesh, features):
        variables = [
            mtf.get_variable(mesh, "matrix", mtf.Shape([a, b])).operation,
            mtf.get_variable(mesh, "vector", mtf.Shape([b])).operation,
            mtf.get_variable(mesh, "bias", mtf.Shape([a, b]), role=mtf.Role("bias")).operation,
        ]
        assert weight_decays(variables, 0.5) == [0.5, 0.0, 0.0]
        return {"x": mtf.reduce_sum(variables[0].value)}

    AbstractProgram(step).trace()
