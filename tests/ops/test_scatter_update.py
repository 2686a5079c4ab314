"""Writing at a place of each row: the same wherever the tensor is split."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.ops.scatter_update import scatter_update
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

MESHES = [
    ("", ""),
    ("a:2;b:2", "batch:a;heads:b"),
    ("a:4", "length:a"),
    ("a:2;b:2", "batch:a;length:b"),
    ("a:2;b:2", "length:a;d_kv:b"),
]
POSITIONS = np.array([0, 7, 3, 3])


def inputs(with_beam=False):
    generator = np.random.default_rng(0)
    beam, sizes = ("beam:3;", [3]) if with_beam else ("", [])
    return {
        "x": (
            f"batch:4;{beam}heads:2;length:8;d_kv:4",
            generator.normal(size=[4, *sizes, 2, 8, 4]),
        ),
        "update": (f"batch:4;{beam}heads:2;d_kv:4", generator.normal(size=[4, *sizes, 2, 4])),
        "positions": ("batch:4", POSITIONS),
    }


def ours(x, update, positions):
    return scatter_update(x, update, positions, mtf.Dimension("length", 8))


def composed(x, update, positions):
    is_there = tf.range(8)[None] == positions[:, None]
    shape = [4] + [1] * (len(x.shape) - 3) + [8, 1]
    return tf.where(tf.reshape(is_there, shape), tf.expand_dims(update, -2), x)


@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES)
def test_it_and_its_gradients_are_those_of_a_choice(mesh_shape, layout):
    got = with_gradients(ours, inputs(), mesh_shape, layout)
    assert_close(got, in_float64(composed, inputs()), 1e-6)


def test_positions_may_lack_a_dimension():
    got = with_gradients(ours, inputs(True), "a:2", "batch:a")
    assert_close(got, in_float64(composed, inputs(True)), 1e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES)
def test_what_is_written_into_stays_as_it_is_for_others(mesh_shape, layout):
    def step(mesh, given):
        x, update, positions = (given[name] for name in ("x", "update", "positions"))
        written = ours(x, update, positions)
        again = ours(written, update * 2.0, positions)
        other = ours(x, update * 2.0, positions * 0)
        return {"x": x * 1.0, "written": written * 1.0, "again": again, "other": other}

    features = {
        name: t2tp.Feature(shape, tf.int32 if name == "positions" else tf.float32)
        for name, (shape, _) in inputs().items()
    }
    made = t2tp.Program(step, features, mesh_shape=mesh_shape, layout=layout)
    x, update, _ = (array for _, array in inputs().values())
    placed = made.place({"x": x, "update": update, "positions": POSITIONS})
    wanted = {
        "x": x,
        "written": composed(x, update, POSITIONS),
        "again": composed(x, update * 2, POSITIONS),
        "other": composed(x, update * 2, POSITIONS * 0),
    }
    for _ in range(2):
        got = made(placed)
        for name, value in wanted.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-6, err_msg=name)


def program(mesh_shape="", layout=""):
    features = {
        name: t2tp.Feature(shape, tf.int32 if name == "positions" else tf.float32)
        for name, (shape, _) in inputs().items()
    }
    return t2tp.Program(
        lambda mesh, given: {"y": ours(**given)}, features, mesh_shape=mesh_shape, layout=layout
    )


@pytest.mark.parametrize("position", [-1, 8])
def test_a_position_out_of_range_is_refused(position):
    arrays = {name: array for name, (_, array) in inputs().items()}
    arrays["positions"] = np.array([0, position, 1, 2])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="along .*positions must be below its size"
    ):
        dict(program()(arrays))


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        (["batch", "d_kv", "heads"], tf.float32, "the dimensions of x"),
        (["batch", "heads", "d_kv"], tf.float16, "must be float32"),
    ],
)
def test_an_update_that_does_not_fit_is_refused(shape, dtype, message):
    sizes = {"batch": 4, "heads": 2, "d_kv": 4}

    def step(mesh, given):
        update = mtf.zeros(mesh, mtf.Shape([mtf.Dimension(d, sizes[d]) for d in shape]), dtype)
        return {"y": ours(given["x"], update, given["positions"])}

    features = {"x": t2tp.Feature(inputs()["x"][0]), "positions": t2tp.Feature("batch:4", tf.int32)}
    with pytest.raises(ValueError, match=message):
        t2tp.Program(step, features)


def test_positions_behind_the_dimension_are_refused():
    features = {
        "x": t2tp.Feature("length:8;batch:4"),
        "update": t2tp.Feature("batch:4"),
        "positions": t2tp.Feature("batch:4", tf.int32),
    }
    with pytest.raises(ValueError, match="which come before it"):
        t2tp.Program(lambda mesh, given: {"y": ours(**given)}, features)
