"""Optimizers: 20 steps as of the references, on one device and on a mesh."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

import t2tp
from t2tp import mtf
from t2tp.mesh.layout import Layout
from t2tp.optim.adafactor import Adafactor
from t2tp.optim.adam import Adam
from tests.optim.regression import make_hparams, train, train_with_keras

MESHES = ["", "data:2;model:2"]
# Data-parallel and tensor-parallel; and a matrix that is cut both ways.
LAID_OUT = [
    ("", ""),
    ("data:2;model:2", "batch:data;d_ff:model"),
    ("data:4", "batch:data"),
    ("model:3;data:2", "d_ff:model;d_in:data"),
]

ADAM = {"optimizer_adam_beta1": 0.8, "optimizer_adam_beta2": 0.95, "optimizer_adam_epsilon": 1e-3}


def keras_adam(variables):
    del variables
    return tf.keras.optimizers.Adam(0.01, beta_1=0.9, beta_2=0.98, epsilon=1e-9)


def keras_adamw(variables):
    made = tf.keras.optimizers.AdamW(0.01, weight_decay=0.1, beta_1=0.8, beta_2=0.95, epsilon=1e-3)
    made.exclude_from_weight_decay(var_list=[variables["scale"]])
    return made


def keras_sgd(variables):
    del variables
    return tf.keras.optimizers.SGD(0.05)


def keras_momentum(variables):
    del variables
    return tf.keras.optimizers.SGD(0.05, momentum=0.9)


def keras_nesterov(variables):
    made = tf.keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.1)
    made.exclude_from_weight_decay(var_list=[variables["scale"], variables["v"]])
    return made


def keras_lion(variables):
    made = tf.keras.optimizers.Lion(0.002, beta_1=0.95, beta_2=0.98, weight_decay=0.5)
    made.exclude_from_weight_decay(var_list=[variables["scale"]])
    return made


def keras_lamb(variables):
    del variables
    return tf.keras.optimizers.Lamb(0.01, beta_1=0.8, beta_2=0.95, epsilon=1e-3)


MOMENTUM = {"optimizer": "sgd", "learning_rate_constant": 0.05, "optimizer_momentum": 0.9}
REFERENCES = {
    "adam": (keras_adam, {"optimizer": "adam"}),
    "adamw": (keras_adamw, {"optimizer": "adam", "weight_decay": 0.1, **ADAM}),
    "sgd": (keras_sgd, {"optimizer": "sgd", "learning_rate_constant": 0.05}),
    "momentum": (keras_momentum, MOMENTUM),
    "nesterov": (
        keras_nesterov,
        {
            **MOMENTUM,
            "optimizer_momentum_nesterov": True,
            "weight_decay": 0.1,
            "weight_decay_exclude": "^v$",
        },
    ),
    "lion": (
        keras_lion,
        {
            "optimizer": "lion",
            "learning_rate_constant": 0.002,
            "optimizer_lion_beta1": 0.95,
            "optimizer_lion_beta2": 0.98,
            "weight_decay": 0.5,
        },
    ),
    "lamb": (keras_lamb, {"optimizer": "lamb", **ADAM}),
}


@functools.cache
def keras_result(name):
    return train_with_keras(REFERENCES[name][0])


@functools.cache
def our_result(name, mesh_shape, layout):
    return train(make_hparams(**REFERENCES[name][1]), mesh_shape, layout)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAID_OUT)
@pytest.mark.parametrize("name", REFERENCES)
def test_twenty_steps_are_those_of_keras(name, mesh_shape, layout):
    ours, theirs = our_result(name, mesh_shape, layout), keras_result(name)
    assert theirs["loss"][-1] < 0.9 * theirs["loss"][0]
    for each, wanted in theirs.items():
        # Adam divides by 1 - beta2**step, which float32 knows to 3e-6 at the first step.
        np.testing.assert_allclose(ours[each], wanted, rtol=2e-5, atol=2e-5, err_msg=each)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAID_OUT[1:])
@pytest.mark.parametrize("name", REFERENCES)
def test_twenty_steps_are_the_same_on_any_layout(name, mesh_shape, layout):
    ours, alone = our_result(name, mesh_shape, layout), our_result(name, "", "")
    for each, wanted in alone.items():
        np.testing.assert_allclose(ours[each], wanted, rtol=1e-6, atol=2e-6, err_msg=each)


@pytest.mark.parametrize("name", REFERENCES)
def test_variables_without_a_fused_kernel_are_updated_by_the_same_formula(name):
    """Those that are not float32."""
    ours = train(make_hparams(**REFERENCES[name][1]), *LAID_OUT[1], dtype=tf.float64)
    for each, wanted in keras_result(name).items():
        np.testing.assert_allclose(ours[each], wanted, rtol=2e-5, atol=2e-5, err_msg=each)


@pytest.mark.parametrize("name", ["momentum", "lion", "lamb", "adamw", "adafactor"])
def test_a_step_with_all_that_can_be_asked_for_compiles_as_a_whole(name):
    """As it is compiled on one GPU."""
    values = REFERENCES[name][1] if name in REFERENCES else {"optimizer": name}
    asked_for = {"ema_decay": 0.9, "skip_nonfinite_steps": True, "skip_step_sigma": 6.0}
    hparams = make_hparams(**values, **asked_for, clip_grad_norm=0.5, show_movement=True)
    compiled, plain = (train(hparams, "", xla=xla) for xla in (True, False))
    for each, wanted in plain.items():
        np.testing.assert_allclose(compiled[each], wanted, rtol=1e-5, atol=1e-5, err_msg=each)


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_a_bfloat16_variable_is_updated_by_float32_moments(mesh_shape):
    """Steps of 2**-6 from 1.0, by gradients that do not vanish, are exact in bfloat16."""
    dim = mtf.Dimension("d_ff", 4)

    def step(mesh, features):
        w = mtf.get_variable(
            mesh, "w", mtf.Shape([dim]), tf.bfloat16, initializer=tf1.ones_initializer()
        )
        grad = mtf.cast(mtf.range(mesh, dim, tf.int32) + 1, tf.bfloat16)
        rate = mtf.constant(mesh, 2.0**-6, dtype=tf.float32)
        Adam(rate, epsilon=0.0).apply_grads([grad], [w.operation])
        return {}

    program = t2tp.Program(step, mesh_shape=mesh_shape, layout="d_ff:model")
    for k in range(8):
        program(step=k)
    np.testing.assert_array_equal(
        program.variables["w"].numpy().astype(np.float32), np.full(4, 1 - 8 * 2.0**-6)
    )
    moments = {name: program.variables[f"w/adam_{name}"] for name in "mv"}
    for name, power, beta in (("m", 1, 0.9), ("v", 2, 0.999)):
        assert moments[name].spec.dtype == tf.float32
        wanted = np.arange(1.0, 5.0) ** power * (1 - beta**8)
        np.testing.assert_allclose(moments[name].numpy(), wanted, rtol=1e-5)


ROWS, COLUMNS, FEW = (mtf.Dimension(n, s) for n, s in (("d_in", 128), ("d_ff", 128), ("few", 4)))


def adafactor_step(mesh, rate, make_optimizer):
    """Gradients of a matrix large enough to be factored, of one that is not, and of a vector."""
    shapes = {"matrix": [ROWS, COLUMNS], "thin": [ROWS, FEW], "vector": [COLUMNS]}
    loss, variables = mtf.constant(mesh, 0.0, dtype=tf.float32), {}
    for name, dims in shapes.items():
        shape = mtf.Shape(dims)
        variables[name] = mtf.get_variable(mesh, name, shape, initializer=tf1.ones_initializer())
        weights = np.sin(np.arange(1.0, shape.size + 1)).reshape(shape.to_integer_list)
        weights = mtf.import_tf_tensor(mesh, weights.astype(np.float32), shape=shape)
        loss += mtf.reduce_sum(weights * mtf.square(variables[name]))
    grads = mtf.gradients([loss], list(variables.values()))
    updates = make_optimizer(rate).apply_grads(grads, [v.operation for v in variables.values()])
    return variables, updates


def adafactor_on_mesh_tensorflows_engine(steps):
    layout = Layout()
    with tf.Graph().as_default(), tf1.Session() as session:
        global_step = tf1.train.get_or_create_global_step()
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        rate = mtf.constant(mesh, 0.05, dtype=tf.float32)
        variables, updates = adafactor_step(
            mesh, rate, lambda rate: mtf.optimize.AdafactorOptimizer(learning_rate=rate)
        )
        impl = mtf.placement_mesh_impl.PlacementMeshImpl(
            layout.mesh_shape, layout.mtf_rules, ["cpu:0"]
        )
        lowering = mtf.Lowering(graph, {mesh: impl})
        session.run(tf1.global_variables_initializer())
        session.run(lowering.copy_masters_to_slices())
        train_op = [lowering.lowered_operation(update) for update in updates]
        for _ in range(steps):
            session.run(train_op)
            session.run(global_step.assign_add(1))
        session.run(lowering.copy_slices_to_masters())
        return session.run({name: v.operation.get_master() for name, v in variables.items()})


@pytest.fixture(scope="module")
def adafactor_reference():
    return adafactor_on_mesh_tensorflows_engine(steps=20)


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_adafactor_is_that_of_mesh_tensorflows_engine(mesh_shape, adafactor_reference):
    def step(mesh, features):
        adafactor_step(mesh, mtf.constant(mesh, 0.05, dtype=tf.float32), Adafactor)
        return {}

    program = t2tp.Program(step, mesh_shape=mesh_shape, layout="d_in:data;d_ff:model")
    for k in range(20):
        program(step=k)
    assert program.variables["matrix/adafactor_vr"].spec.shape.size == 128
    for name, wanted in adafactor_reference.items():
        value = program.variables[name].numpy()
        assert np.abs(value - 1).max() > 0.1
        np.testing.assert_allclose(value, wanted, rtol=1e-5, err_msg=name)
