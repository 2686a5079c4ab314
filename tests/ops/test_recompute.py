"""Recomputation gives the same gradients, and TensorFlow's optimizer does not remove it."""

import functools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

import t2tp
from t2tp import mtf

BATCH, D = mtf.Dimension("batch", 4), mtf.Dimension("d", 8)
E = mtf.Dimension("e", 8)
X = np.random.default_rng(0).normal(size=(4, 8))


def plain(fn, inputs):
    return fn(*inputs)


def step_with(apply):
    """Returns a step of two blocks with dropout, run by `apply(fn, inputs)`."""

    def step(mesh, features):
        w = mtf.get_variable(mesh, "w", mtf.Shape([D, E]))
        extra = mtf.get_variable(mesh, "extra", mtf.Shape([D]))

        def block(x):
            hidden = mtf.tanh(mtf.einsum([x, w], [BATCH, E]))
            hidden = mtf.dropout(hidden, is_training=True, rate=0.5)
            noise = mtf.random_uniform(mesh, mtf.Shape([BATCH, D]))
            return mtf.rename_dimension(hidden, "e", "d") * noise + x * extra

        y = apply(block, [apply(block, [features["x"]])])
        grads = mtf.gradients([mtf.square(y)], [features["x"], w, extra])
        return {"y": y, **dict(zip(["dx", "dw", "dextra"], grads, strict=True))}

    return step


def run(step, mesh_shape="", layout="batch:data;e:model"):
    features = {"x": t2tp.Feature(mtf.Shape([BATCH, D]))}
    program = t2tp.Program(step, features, mesh_shape=mesh_shape, layout=layout)
    return program, program({"x": X}, step=3)


def nested(fn, inputs):
    return mtf.recompute_grad(lambda *xs: mtf.recompute_grad(fn, list(xs)), inputs)


@pytest.mark.parametrize("apply", [mtf.recompute_grad, nested], ids=["once", "nested"])
@pytest.mark.parametrize("mesh_shape", ["", "data:2", "data:2;model:2"])
def test_gradients_are_those_of_the_plain_function(apply, mesh_shape):
    _, wanted = run(step_with(plain))
    _, values = run(step_with(apply), mesh_shape)
    for name in wanted:
        np.testing.assert_allclose(values[name], wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)


def graph_run(step):
    """Returns the graph that TensorFlow runs after its optimizer merged equal operations."""
    context = eager_context.context()
    is_off = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    context.enable_graph_collection()
    run(step)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": is_off})
    graphs = [g.post_optimization_graph for g in context.export_run_metadata().function_graphs]
    context.disable_graph_collection()
    return max(graphs, key=lambda graph: sum(node.op == "MatMul" for node in graph.node))


def operations_run(step):
    """Counts the operations that TensorFlow runs, by kind."""
    return Counter(node.op for node in graph_run(step).node)


def names_before(graph, name):
    """Returns the names of all nodes that a node waits for."""
    inputs = {
        node.name: [x.lstrip("^").partition(":")[0] for x in node.input] for node in graph.node
    }
    found, left = set(), [name]
    while left:
        left += [x for x in inputs[left.pop()] if x not in found and not found.add(x)]
    return found


@pytest.mark.cpu_only  # reads the graph that TensorFlow runs; XLA has another one
def test_one_function_at_a_time_is_recomputed():
    def step(mesh, features):
        weights = [mtf.get_variable(mesh, f"w{i}", mtf.Shape([D, E])) for i in range(2)]
        x = features["x"]
        for w in weights:

            def block(x, w=w):
                return mtf.rename_dimension(mtf.tanh(mtf.einsum([x, w], [BATCH, E])), "e", "d")

            x = mtf.recompute_grad(block, [x])
        grads = mtf.gradients([mtf.square(x)], weights)
        return {"dw0": grads[0], "dw1": grads[1]}

    graph = graph_run(step)
    (again,) = (
        node.name
        for node in graph.node
        if node.op == "MatMul"
        and any(x.startswith("w0/") for x in node.input)
        and any("zero_after" in x for x in names_before(graph, node.name))
    )
    later = {n.name for n in graph.node if n.op == "MatMul" and "einsum_1/gradients" in n.name}
    assert len(later) == 2 and later <= names_before(graph, again)


@pytest.mark.cpu_only  # reads the graph that TensorFlow runs; XLA has another one
def test_everything_inside_is_computed_again_random_numbers_too():
    once, again = operations_run(step_with(plain)), operations_run(step_with(mtf.recompute_grad))
    assert again["MatMul"] == once["MatMul"] + 2
    assert again["RightShift"] == 2 * once["RightShift"]


def test_assignments_inside_are_carried_out_once():
    def step(mesh, features):
        count = mtf.get_variable(
            mesh, "count", mtf.Shape([]), initializer=tf.zeros_initializer(), trainable=False
        )

        def block(x):
            mtf.assign_add(count, mtf.constant(mesh, 1.0))
            return mtf.square(x)

        y = mtf.recompute_grad(block, [features["x"]])
        return {"dx": mtf.gradients([y], [features["x"]])[0]}

    program, values = run(step)
    np.testing.assert_allclose(values["dx"], 2 * X, rtol=1e-6)
    assert program.variables["count"].numpy() == 1


def test_an_input_given_twice_gets_its_gradient_once():
    def step(mesh, features):
        x = features["x"]
        y = mtf.recompute_grad(lambda a, b: a * b, [x, x])
        return {"dx": mtf.gradients([y], [x])[0]}

    np.testing.assert_allclose(run(step)[1]["dx"], 2 * X, rtol=1e-6)


def test_other_tensors_that_a_function_reads_are_in_the_order_of_use():
    """Each process traces the program, and a set has another order in each process."""
    mesh = mtf.Mesh(mtf.Graph(), "mesh")
    x, *others = [mtf.constant(mesh, float(i)) for i in range(12)]
    y = mtf.recompute_grad(lambda x: functools.reduce(mtf.add, others[::-1], x), [x])
    assert y.operation._all_inputs == [x, *others[::-1]]
