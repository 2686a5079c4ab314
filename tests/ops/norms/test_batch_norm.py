"""Batch and group norm: the composed computation's numbers, over all of a batch that is split."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.mesh.layout import LayoutError
from t2tp.ops.norms.batch_norm import batch_norm
from t2tp.ops.norms.group_norm import group_norm
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

LAYOUTS = [
    ("", ""),
    ("data:4", "batch:data"),
    ("model:4", "channels:model"),
    ("data:2;model:2", "batch:data;channels:model"),
    ("rows:2;columns:2", "height:rows;width:columns"),
    ("data:2;rows:2;model:2", "batch:data;height:rows;channels:model"),
]
EPSILON = 0.1  # Large, so that a wrong one is seen.
GROUPS = 4


def make_inputs(mean=0.7):
    random = np.random.default_rng(0)
    return {
        "x": (
            "batch:8;height:4;width:6;channels:8",
            mean + 2.0 * random.normal(size=(8, 4, 6, 8)),
        ),
        "scale": ("channels:8", random.uniform(0.5, 1.5, size=8)),
        "offset": ("channels:8", random.uniform(0.5, 1.5, size=8)),
    }


def our_batch_norm(x, scale, offset):
    return batch_norm(x, scale, offset, EPSILON)[0]


def composed_batch_norm(x, scale, offset):
    mean, variance = tf.nn.moments(x, [0, 1, 2])
    return (x - mean) / tf.sqrt(variance + EPSILON) * scale + offset


def our_group_norm(x, scale, offset):
    return group_norm(x, scale, offset, GROUPS, EPSILON)


def composed_group_norm(x, scale, offset):
    grouped = tf.reshape(x, [*x.shape[:3], GROUPS, -1])
    mean, variance = tf.nn.moments(grouped, [1, 2, 4], keepdims=True)
    normed = tf.reshape((grouped - mean) / tf.sqrt(variance + EPSILON), x.shape)
    return normed * scale + offset


NORMS = [(our_batch_norm, composed_batch_norm), (our_group_norm, composed_group_norm)]
both_norms = pytest.mark.parametrize(("ours", "composed"), NORMS, ids=["batch", "group"])


@both_norms
@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_any_layout_gives_the_composed_value_and_gradients(ours, composed, mesh_shape, layout):
    inputs = make_inputs()
    values = with_gradients(ours, inputs, mesh_shape, layout)
    assert_close(values, in_float64(composed, inputs), 3e-6)


@pytest.mark.parametrize("xla", [True, False])
def test_what_is_written_out_for_xla_gives_the_kernels_gradients(xla):
    inputs = make_inputs()
    features = {name: t2tp.Feature(shape) for name, (shape, _) in inputs.items()}

    def step(mesh, given):
        del mesh
        y = our_batch_norm(**given)
        loss = mtf.reduce_sum(mtf.square(y) * given["x"])
        grads = mtf.gradients([loss], list(given.values()))
        return {"y": y} | dict(zip(given, grads, strict=True))

    arrays = {name: array for name, (_, array) in inputs.items()}
    kernels, written_out = (
        t2tp.Program(step, features, xla=which)(arrays) for which in (None, xla)
    )
    assert_close(dict(written_out), dict(kernels), 3e-6)


@both_norms
def test_bfloat16_is_computed_with_in_float32(ours, composed):
    inputs = make_inputs()
    layout = "batch:data;channels:model"
    values = with_gradients(ours, inputs, "data:2;model:2", layout, tf.bfloat16)
    assert_close(values, in_float64(composed, inputs, tf.bfloat16), 3 * 2**-8)


def statistics(mesh_shape, layout, mean, xla=None):
    def step(mesh, given):
        del mesh
        _, mean, variance = batch_norm(*given.values(), EPSILON)
        return {"mean": mean, "variance": variance}

    inputs = make_inputs(mean)
    features = {name: t2tp.Feature(shape) for name, (shape, _) in inputs.items()}
    program = t2tp.Program(step, features, mesh_shape=mesh_shape, layout=layout, xla=xla)
    return program({name: array for name, (_, array) in inputs.items()}), inputs["x"][1]


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
@pytest.mark.parametrize("mean", [0.7, 4096.0])
def test_statistics_are_those_of_the_whole_batch(mesh_shape, layout, mean):
    """Far from zero the digits are not lost."""
    check_statistics(*statistics(mesh_shape, layout, mean), rtol=1e-3 if mean > 1 else 1e-5)


@pytest.mark.parametrize("xla", [True, False])
@pytest.mark.parametrize("mean", [0.7, 4096.0])
def test_xla_keeps_the_digits_too(xla, mean):
    check_statistics(*statistics("", "", mean, xla), rtol=1e-3 if mean > 1 else 1e-5)


def check_statistics(values, x, rtol):
    x = x.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(values["mean"], x.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(values["variance"], x.var((0, 1, 2)), rtol=rtol)


def test_batch_norm_moves_two_numbers_a_channel_each_way():
    inputs = make_inputs()
    features = {name: t2tp.Feature(shape) for name, (shape, _) in inputs.items()}

    def step(mesh, given):
        del mesh
        y = our_batch_norm(**given)
        return {"d": mtf.gradients([y], [given["x"]])[0]}

    program = t2tp.Program(
        step, features, mesh_shape="data:2;rows:2", layout="batch:data;height:rows"
    )
    assert program.collectives() == {
        ("allgather", ("data", "rows")): (1, 2 * 8 * 4),
        ("allreduce", ("data", "rows")): (1, 2 * 8 * 4),
    }


def test_channels_that_are_not_the_scales_are_refused():
    inputs = make_inputs() | {"scale": ("other:8", np.ones(8))}
    with pytest.raises(ValueError, match="must be its last dimension"):
        with_gradients(our_batch_norm, inputs)
    with pytest.raises(ValueError, match="scale .* must|group_norm"):
        with_gradients(our_group_norm, inputs)


def test_groups_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="3 groups do not divide .*channels.*: 2, 4, 1 would"):
        with_gradients(lambda x, scale, offset: group_norm(x, scale, offset, 3, 0.1), make_inputs())
    with pytest.raises(LayoutError, match="size 8 does not divide them: choose a multiple of 8"):
        with_gradients(our_group_norm, make_inputs(), "model:8", "channels:model")
