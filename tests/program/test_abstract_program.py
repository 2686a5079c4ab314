"""Abstract programs, with meshes and variables that are too large for any machine."""

import numpy as np
import pytest

import t2tp
from t2tp import mtf
from t2tp.program.abstract_program import AbstractProgram
from tests.models.small_lm import FEATURES, training_program

HPARAMS = [
    {},
    {"num_kv_heads": 2},
    {"num_kv_heads": 2, "layout": "heads:model;kv_heads:data"},
    {"layout": "batch:data;length:model"},
    {"layout": "batch:data;d_model:model"},
    {"optimizer": "adafactor"},  # Its updates communicate.
]


@pytest.mark.parametrize("hparams", HPARAMS, ids=str)
def test_its_collectives_are_the_real_ones(hparams):
    real = training_program("data:2;model:2", **hparams)
    rules = real.layout.rules_text
    paper = AbstractProgram(real._step_fn, FEATURES, mesh_shape="data:2;model:2", layout=rules)
    assert paper.collective_log() == real.collective_log()


@pytest.mark.parametrize(("mesh_shape", "times_lowered"), [("", 0), ("data:2", 1)])
def test_what_cannot_communicate_is_not_lowered(mesh_shape, times_lowered):
    slices = []

    def step(mesh, features):
        x = features["x"]
        return {
            "y": mtf.slicewise(lambda x: slices.append(x) or x, [x], splittable_dims=x.shape.dims)
        }

    AbstractProgram(
        step, {"x": t2tp.Feature("batch:4")}, mesh_shape=mesh_shape, layout="batch:data"
    ).collective_log()
    assert len(slices) == times_lowered


def test_it_needs_neither_devices_nor_memory():
    rows, columns = mtf.Dimension("rows", 1 << 24), mtf.Dimension("columns", 1 << 20)

    def step(mesh, features):
        w = mtf.get_variable(mesh, "w", mtf.Shape([rows, columns]))  # 64 TiB
        return {"y": mtf.einsum([features["x"], w], output_shape=[columns])}

    features = {"x": t2tp.Feature(mtf.Shape([rows]))}
    program = AbstractProgram(step, features, mesh_shape="model:4096", layout="rows:model")
    assert program.collectives() == {("allreduce", ("model",)): (1, 4 << 20)}


def test_it_is_not_run():
    program = AbstractProgram(
        lambda mesh, features: {"y": features["x"] * 2.0}, {"x": t2tp.Feature("batch:4")}
    )
    with pytest.raises(ValueError, match=r"on no devices: make a t2tp\.Program to run it"):
        program({"x": np.zeros(4)})
