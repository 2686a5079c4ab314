"""While loops on any mesh."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import t2tp
from t2tp import mtf
from tests.lowering import oracle

BATCH, D = mtf.Dimension("batch", 8), mtf.Dimension("d", 4)
X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
MESHES = ["", "data:2", "data:2;model:2", "data:2;model:2;third:2"]
LAYOUT = "batch:data;d:model"


def run(step, mesh_shape="", number=0):
    features = {"x": (mtf.Shape([BATCH, D]), X)}
    return oracle.program_and_outputs(step, features, mesh_shape, LAYOUT, number)


def program_of_rows(step, mesh_shape):
    """Returns a program that is fed an integer per row."""
    features = {"n": t2tp.Feature(mtf.Shape([BATCH]), tf.int32)}
    return t2tp.Program(step, features, mesh_shape=mesh_shape, layout=LAYOUT)


def microbatch_step(mesh, features):
    w = mtf.get_variable(mesh, "w", mtf.Shape([D]), initializer=tf.ones_initializer())

    def model_fn(features):
        y = mtf.square(features["x"] * w)
        return {"loss": mtf.reduce_sum(y), "y": y}

    (dw,), outputs = mtf.serialize_training_step(features, model_fn, BATCH, 2)
    return {"dw": dw, **outputs}


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_microbatches_give_the_gradient_of_the_batch_and_reduce_it_once(mesh_shape):
    program, values = run(microbatch_step, mesh_shape)
    np.testing.assert_allclose(values["dw"], 2 * np.square(X).sum(0), rtol=1e-5)
    np.testing.assert_allclose(values["loss"], np.square(X).sum(), rtol=1e-5)
    np.testing.assert_allclose(values["y"], np.square(X), rtol=1e-5)
    allreduces = [n for (kind, _), (n, _) in program.collectives().items() if kind == "allreduce"]
    assert sum(allreduces) <= 2  # for the loss and the gradient


def random_step(mesh, features):
    dim = mtf.Dimension("draws", 5)

    def body(i, draws):
        drawn = mtf.random_uniform(mesh, mtf.Shape([BATCH]))
        return [i + 1, draws + drawn * mtf.one_hot(i, dim)]

    zeros = mtf.zeros(mesh, mtf.Shape([BATCH, dim]))
    start = mtf.constant(mesh, 0, dtype=tf.int32)
    _, draws = mtf.while_loop(lambda i, _: mtf.less(i, 5), body, [start, zeros])
    return {"draws": draws}


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_each_iteration_draws_its_own_numbers_the_same_on_any_mesh(mesh_shape):
    draws = run(random_step, mesh_shape)[1]["draws"]
    assert len(np.unique(draws)) == 40
    np.testing.assert_array_equal(draws, run(random_step)[1]["draws"])
    assert len(np.unique([draws, run(random_step, mesh_shape, number=1)[1]["draws"]])) == 80


def test_what_a_loop_assigns_is_assigned_though_nobody_asks_for_its_outputs():
    def step(mesh, features):
        count = mtf.get_variable(
            mesh, "count", mtf.Shape([]), initializer=tf.zeros_initializer(), trainable=False
        )

        def body(i):
            mtf.assign_add(count, mtf.constant(mesh, 1.0))
            return [i + 1]

        mtf.while_loop(lambda i: mtf.less(i, 3), body, [mtf.constant(mesh, 0, dtype=tf.int32)])
        return {}

    program, _ = run(step, "data:2")
    assert program.variables["count"].numpy() == 3


def test_loop_variables_that_are_not_asked_for_are_not_made_variables_of_the_model():
    """mesh-tensorflow stores all loop variables after the first `num_loop_vars` as trainable."""

    def step(mesh, features):
        start = mtf.constant(mesh, 0.0)

        def body(total, x):
            return [total + mtf.reduce_sum(x), x * 2.0]

        (total,) = mtf.while_loop(
            lambda total, x: mtf.less(mtf.reduce_sum(mtf.square(x)), 100.0 * np.square(X).sum()),
            body,
            [start, features["x"]],
            num_loop_vars=1,
        )
        return {"total": total}

    program, values = run(step, "data:2;model:2")
    np.testing.assert_allclose(values["total"], X.sum() * (1 + 2 + 4 + 8), rtol=1e-5)
    assert len(program.variables) == 0


def test_a_loop_runs_on_its_own_device_only():
    """Tests integer variables, whose arguments TensorFlow places on the first CPU by default."""

    def step(mesh, features):
        n = features["n"]
        (m,) = mtf.while_loop(
            lambda m: mtf.less(mtf.reduce_max(m), 9), lambda m: [m + n], [mtf.zeros_like(n)]
        )
        return {"m": m}

    program = program_of_rows(step, "data:2")
    tf.config.list_logical_devices()  # Graphs are recorded only after TensorFlow has started.
    context.context().enable_graph_collection()
    values = program({"n": np.arange(8, dtype=np.int32)})
    notes = context.context().export_run_metadata()
    context.context().disable_graph_collection()
    loops = [
        {tf.DeviceSpec.from_string(node.device).device_index for node in graph.node}
        for function in notes.function_graphs
        for graph in function.partition_graphs
        if any(node.op == "NextIteration" for node in graph.node)
    ]
    np.testing.assert_array_equal(values["m"], 2 * np.arange(8))
    assert sorted(map(sorted, loops)) == [[0], [1]]


def rows_step(together):
    """Returns a step whose rows count down from their own numbers, and count their iterations."""

    def step(mesh, features):
        n = features["n"]

        def body(i, left, visits):
            goes_on = mtf.cast(mtf.greater(left, 0), tf.int32)
            if together:
                visits += mtf.reduce_sum(goes_on) * 0
            return [i + 1, left - goes_on, visits + 1]

        start = [mtf.constant(mesh, 0, dtype=tf.int32), n, mtf.zeros_like(n)]
        _, left, visits = mtf.while_loop(lambda i, left, visits: mtf.greater(left, 0), body, start)
        return {"left": left, "visits": visits}

    return step


STEPS_OF_ROWS = [
    (False, [1, 2, 0, 5, 3, 3, 7, 2]),
    (True, [1, 2, 0, 5, 3, 3, 7, 2]),
    (False, [0] * 8),
]


@pytest.mark.parametrize("mesh_shape", ["", "model:2", "data:2", "data:4;model:2"])
@pytest.mark.parametrize(("together", "rows"), STEPS_OF_ROWS)
def test_processors_leave_a_loop_when_their_own_rows_are_done(mesh_shape, together, rows):
    n = np.array(rows, np.int32)
    program = program_of_rows(rows_step(together), mesh_shape)
    values = program({"n": n})
    np.testing.assert_array_equal(values["left"], np.zeros(8))
    data = program.layout.axis_of("batch")
    parts = data.size if data and not together else 1
    longest = np.repeat(n.reshape(parts, -1).max(1), 8 // parts)
    np.testing.assert_array_equal(values["visits"], longest)
