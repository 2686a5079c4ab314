"""Programs: the same values on any mesh, names of variables, collectives, and refusals."""

import gc

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

import t2tp
from t2tp import mtf
from tests.models.small_lm import make_batch, training_program

BATCH, D_IN, D_FF = mtf.Dimension("batch", 8), mtf.Dimension("d_in", 6), mtf.Dimension("d_ff", 12)
LAYOUT = "batch:data;d_ff:model"
MESHES = ["data:4", "model:4", "data:2;model:2", "data:2;model:4", "model:2;data:4", "a:1;data:2"]
X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)


def mlp_step(mesh, features):
    x = features["x"]
    w = mtf.get_variable(mesh, "w", mtf.Shape([D_IN, D_FF]))
    v = mtf.get_variable(mesh, "v", mtf.Shape([D_FF, D_IN]))
    hidden = mtf.relu(mtf.einsum([x, w], [BATCH, D_FF]))
    y = mtf.einsum([mtf.softmax(hidden, D_FF), v], [BATCH, D_IN])
    loss = mtf.reduce_mean(mtf.square(y - x))
    dw, dv = mtf.gradients([loss], [w, v])
    return {"y": y, "hidden": hidden, "loss": loss, "dw": dw, "dv": dv}


def run(step_fn, mesh_shape, layout=LAYOUT, **kwargs):
    features = {"x": t2tp.Feature(mtf.Shape([BATCH, D_IN]))}
    program = t2tp.Program(step_fn, features, mesh_shape=mesh_shape, layout=layout, **kwargs)
    return program, program({"x": X})


def training_step(mesh, features):
    outputs = mlp_step(mesh, features)
    variables = mesh.graph.trainable_variables
    gradients = [outputs["dw"], outputs["dv"]]
    mtf.optimize.AdafactorOptimizer(learning_rate=0.01).apply_grads(gradients, variables)
    return {"loss": outputs["loss"]}


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_random_tensors_and_initial_values_do_not_depend_on_the_mesh(mesh_shape):
    def step(mesh, features):
        shape = mtf.Shape([BATCH, D_FF])
        return {
            "uniform": mtf.random_uniform(mesh, shape),
            "normal": mtf.random_normal(mesh, shape),
            "integer": mtf.random_uniform(mesh, shape, maxval=10, dtype=tf.int32),
            "dropped": mtf.dropout(features["x"], is_training=True, rate=0.5),
            "w": mtf.get_variable(mesh, "w", mtf.Shape([D_IN, D_FF])),
        }

    _, reference = run(step, "")
    program, values = run(step, mesh_shape)
    for name in reference:
        # XLA, which compiles the step of one GPU, rounds logarithms differently than TensorFlow.
        rtol = 1e-6 if tf.config.list_logical_devices("GPU") else 0
        np.testing.assert_allclose(values[name], reference[name], rtol, err_msg=name)
    assert not np.array_equal(values["uniform"], program({"x": X}, step=1)["uniform"])
    np.testing.assert_array_equal(values["w"], program.variables["w"].numpy())


def test_the_program_does_not_grow_with_the_mesh():
    def num_operations(mesh_shape):
        program, _ = run(training_step, mesh_shape)
        # Constants are not counted: on one of the meshes, two may be equal and are then one node.
        return sum(op.type != "Const" for op in program.trace().graph.get_operations())

    assert num_operations("data:4;model:2") == num_operations("data:2;model:2")


def test_nobody_collects_garbage_while_it_is_built_and_traced():
    collects = []

    def step(mesh, features):
        collects.append(gc.isenabled())
        return mlp_step(mesh, features)

    run(step, "")
    assert collects == [False, False] and gc.isenabled()


def test_variable_scopes_are_named_alike_in_every_program():
    def step(mesh, features):
        return {"y": mtf.layers.dense(features["x"], D_FF, reduced_dims=[D_IN], name=None)}

    names = [sorted(v.spec.name for v in run(step, mesh)[0].variables) for mesh in ("", "data:2")]
    assert names[0] == names[1]


def test_step_number_is_what_tensorflow_code_takes_for_the_global_step():
    def step(mesh, features):
        return {
            "step": mesh.step,
            "global": mtf.import_tf_tensor(mesh, tf1.train.get_or_create_global_step()),
        }

    program, _ = run(step, "data:2")
    values = program({"x": X}, step=41)
    assert int(values["step"]) == int(values["global"]) == 41


def test_collectives_of_a_reduction_nobody_uses_are_not_run():
    def step(mesh, features):
        mtf.reduce_max(features["x"], output_shape=mtf.Shape([D_IN]))  # Unused.
        return {"x": features["x"]}

    program, _ = run(step, "data:2")
    assert program.collectives() == {}


REFUSED = [
    ("data:3", LAYOUT, None, "'x' .batch=8, d_in=6.*size 3 does not divide dimension 'batch'"),
    ("data:2", "d_in:data;d_ff:data", None, "'w' .d_in=6, d_ff=12.*both its dimensions"),
    ("data:2", LAYOUT, True, "xla .*'?data:2.* has 2"),
]


@pytest.mark.parametrize(("mesh_shape", "layout", "xla", "said"), REFUSED)
def test_a_layout_that_cannot_work_is_refused_before_anything_runs(mesh_shape, layout, xla, said):
    with pytest.raises(t2tp.LayoutError, match=said):
        run(mlp_step, mesh_shape, layout, xla=xla)


def test_an_operation_that_cannot_be_split_is_refused_unless_the_axis_has_one_processor():
    def step(mesh, features):
        return {"y": mtf.concat([features["x"], features["x"]], "d_in")}

    with pytest.raises(t2tp.LayoutError, match="cannot be computed with dimension 'd_in' split"):
        run(step, "model:2", "d_in:model")
    _, values = run(step, "model:1", "d_in:model")
    np.testing.assert_array_equal(values["y"], np.concatenate([X, X], 1))


@pytest.mark.cpu_only
def test_a_mesh_needs_as_many_devices_as_processors():
    with pytest.raises(ValueError, match="4 processors, but there are 2 devices"):
        t2tp.connect(4, devices=["/cpu:0", "/cpu:1"])
    with pytest.raises(ValueError, match="needs 16 virtual CPU devices"):
        t2tp.connect(16)


def test_wrong_features_are_refused():
    program, _ = run(mlp_step, "")
    with pytest.raises(ValueError, match="features .'x'., not .'y'"):
        program({"y": X})
    with pytest.raises(ValueError, match="'x' has shape .8, 5., not .8, 6."):
        program({"x": X[:, :5]})


@pytest.mark.cpu_only  # XLA leaves out assertions
def test_a_failure_on_the_devices_reaches_the_caller():
    def step(mesh, features):
        def fail_on_purpose(x):
            with tf.control_dependencies([tf.debugging.assert_less(x, 0.0, "on purpose")]):
                return tf.identity(x)

        del mesh
        x = mtf.slicewise(fail_on_purpose, [features["x"]], splittable_dims=[BATCH, D_IN])
        return {"sum": mtf.reduce_sum(x)}

    with pytest.raises(tf.errors.InvalidArgumentError, match="on purpose"):
        run(step, "")


@pytest.mark.parametrize("layout", ["", "a:x"])
def test_lists_of_numbers_are_features(layout):
    program = t2tp.Program(
        lambda mesh, given: {"y": given["x"]},
        {"x": t2tp.Feature("a:2;b:2")},
        layout=t2tp.Layout("x:2", layout),
    )
    np.testing.assert_array_equal(program({"x": [[1, 2], [3, 4]]})["y"], [[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(ValueError, match="'x' is not an array: its rows differ in length"):
        program({"x": [[1.0, 2.0], [3.0]]})
    with pytest.raises(ValueError, match="'x' is not an array of numbers"):
        program({"x": [["1", "2"], ["3", "4"]]})


@pytest.mark.parametrize("optimizer", ["adam", "adafactor", "sgd"])
def test_a_device_holds_what_the_shapes_of_weights_and_slots_say(optimizer):
    program = training_program("data:2;model:2", optimizer=optimizer)
    program(make_batch())
    said = t2tp.explain(program).data.memory
    kept = [said["weights"], said["optimizer"]]
    for pnum, device in enumerate(program.cluster.devices):
        slices = [v.slice_of(pnum) for v in program.variables]
        assert {x.device.rpartition("/")[2] for x in slices} == {device.rpartition("/")[2]}
        assert sum(x.numpy().nbytes for x in slices) == sum(kept)
    # `model` splits all weights in two, except positions and norms; `data` splits no weights.
    whole = sum(4 * v.spec.shape.size for v in program.variables if v.spec.trainable)
    assert 0.5 < kept[0] / whole < 0.6


def test_a_product_larger_than_memory_is_refused_when_it_is_traced():
    features = {"x": t2tp.Feature("a:1000000;d:2"), "y": t2tp.Feature("b:1000000;d:2")}

    def step(mesh, given):
        rows, columns = (x.shape.dims[0] for x in given.values())
        return {"y": mtf.reduce_sum(mtf.einsum([*given.values()], [rows, columns]))}

    program = t2tp.Program(step, features, mesh_shape="x:2", layout="a:x")
    with pytest.raises(MemoryError, match=r"500000.* has 2,000.0 GB.*smaller batch"):
        program(dict.fromkeys(features, np.ones([1000000, 2], np.float32)))
