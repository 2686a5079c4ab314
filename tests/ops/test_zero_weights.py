"""Variables that are sharded at rest: values, gradients, updates and traffic, in float64."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

import t2tp
from t2tp import mtf
from t2tp.mesh.storage import Storage
from t2tp.ops.variables.zero_weights import gradients_at_rest

BATCH, D, FF = mtf.Dimension("batch", 16), mtf.Dimension("d", 8), mtf.Dimension("ff", 24)
X = np.random.default_rng(0).normal(size=[16, 8])
MESHES = {
    "data": ("data:4", "batch:data"),
    "tensor": ("data:2;model:2", "batch:data;ff:model"),
    "pods": ("pod:2;data:2;model:2", "batch:pod+data;ff:model"),
    "tensor first": ("model:2;data:4", "batch:data;d:model"),
}


def step_fn(mesh, features, recompute=False):
    """Trains two tied layers by gradient descent."""
    dtype = mtf.VariableDType(tf.float64, tf.float64, tf.float64)
    up, down = (
        mtf.get_variable(
            mesh, name, mtf.Shape(dims), dtype=dtype, initializer=tf1.random_normal_initializer()
        )
        for name, dims in (("layer_0/up", [D, FF]), ("layer_1/down", [FF, D]))
    )
    bias = mtf.get_variable(
        mesh, "bias", mtf.Shape([FF]), dtype=dtype, initializer=tf1.zeros_initializer()
    )

    def layers(x):
        hidden = mtf.tanh(mtf.einsum([x, up], output_shape=[BATCH, FF]) + bias)
        return mtf.einsum([hidden, down], output_shape=[BATCH, D])

    y = mtf.recompute_grad(layers, [features["x"]]) if recompute else layers(features["x"])
    back = mtf.einsum([y, up], output_shape=[BATCH, FF])  # the second use of `up`
    loss = mtf.reduce_mean(mtf.square(back))
    variables = mesh.graph.trainable_variables
    grads = mtf.gradients([loss], [v.value for v in variables])
    grads = gradients_at_rest(grads, variables)
    for var, grad in zip(variables, grads, strict=True):
        mtf.assign_sub(var, 0.1 * grad)
    return {"loss": loss}


@functools.cache
def trained(mesh, stage, recompute=False, rules="", axes=""):
    """Returns the losses of three steps, the variables after them, and the program."""
    mesh_shape, layout = MESHES.get(mesh, ("", ""))
    program = t2tp.Program(
        functools.partial(step_fn, recompute=recompute),
        {"x": t2tp.Feature(mtf.Shape([BATCH, D]), tf.float64)},
        layout=t2tp.Layout(mesh_shape, layout, Storage(stage, axes, rules)),
    )
    losses = [float(program({"x": X}, step)["loss"]) for step in range(3)]
    return losses, {v.spec.name: v.numpy() for v in program.variables}, program


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("recompute", [False, True])
def test_three_steps_are_those_of_one_device(mesh, stage, recompute):
    losses, values, _ = trained(mesh, stage, recompute)
    wanted_losses, wanted, _ = trained("one device", 0)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-12)
    for name, value in wanted.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-12, atol=1e-13, err_msg=name)


def test_each_device_holds_its_part_of_what_is_sharded_and_all_of_vectors():
    def parts(mesh, stage=1, **storage):
        program = trained(mesh, stage, **storage)[2]
        return {v.spec.name: tuple(v.slices[0].shape) for v in program.variables}

    assert parts("data") == {"layer_0/up": (2, 24), "layer_1/down": (6, 8), "bias": (24,)}
    # `model` splits `ff` in use, so `d` is sharded at rest.
    assert parts("tensor")["layer_0/up"] == (4, 12)
    assert parts("tensor")["layer_1/down"] == (12, 4)
    assert parts("pods", axes="data")["layer_0/up"] == (4, 12)
    assert parts("tensor", rules="ff:data")["layer_0/up"] == (8, 6)
    assert parts("tensor", rules="ff:data")["bias"] == (6,)


def test_storage_rules_give_the_same_numbers():
    given = trained("tensor", 3, rules="ff:data")[0]
    np.testing.assert_allclose(given, trained("one device", 0)[0], rtol=1e-12)


def test_small_variables_share_collectives_as_far_as_they_are_needed_together():
    """Each of two layers has one weight; stage 3 gathers each separately, forward and backward."""

    def moved(stage):
        calls = trained("data", stage)[2].collectives()
        return {kind: each for (kind, _), each in calls.items() if kind != "allreduce"}

    both = 2 * D.size * FF.size * 8
    assert moved(1) == moved(2) == {"allgather": (1, both // 4), "reducescatter": (1, both)}
    assert moved(3) == {"allgather": (4, 2 * both // 4), "reducescatter": (1, both)}


def test_what_cannot_be_sharded_is_refused():
    with pytest.raises(t2tp.LayoutError, match=r"'up' \[d=8, ff=24\]: .* both its dimensions 'd'"):
        t2tp.Program(
            lambda mesh, _: {"up": mtf.get_variable(mesh, "up", mtf.Shape([D, FF]))},
            layout=t2tp.Layout("data:2;model:2", "batch:data;d:model;ff:model", Storage(3)),
        )
    with pytest.raises(t2tp.LayoutError, match="set zero_stage to 1, 2 or 3"):
        t2tp.Layout("data:2", "batch:data", Storage(rules="d:data"))
    clash = t2tp.Layout("data:2;model:2", "batch:data;ff:model", Storage(1, rules="ff:model"))
    uneven = t2tp.Layout("data:5;model:2", "ff:model", Storage(1, rules="ff:data"))
    for layout, names in ((clash, "'ff:model'.*'model'.*'ff'"), (uneven, "'ff:data'.* 12 by 5")):
        with pytest.raises(t2tp.LayoutError, match=names) as refused:
            layout.at_rest(mtf.Shape([D, FF]))
        assert "@" not in str(refused.value)
