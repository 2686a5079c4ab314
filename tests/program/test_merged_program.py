"""Programs of all processors that XLA compiles as one. (Their collectives, loops, and graphs drawn
at random are tested where those of separate programs are.)"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.processes.cluster import Cluster

pytestmark = pytest.mark.joint

BATCH, D, E = mtf.Dimension("batch", 8), mtf.Dimension("d", 4), mtf.Dimension("e", 6)
FEATURES = {"x": t2tp.Feature(mtf.Shape([BATCH, D]))}
X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
SPLIT = {"mesh_shape": "data:2;model:2", "layout": "batch:data;e:model"}


def weight(mesh: mtf.Mesh) -> mtf.Tensor:
    return mtf.get_variable(mesh, "w", mtf.Shape([D, E]), initializer=tf.ones_initializer())


def product(mesh, features):
    """Of the features with a weight, and of the weight with itself."""
    w = weight(mesh)
    f = mtf.rename_dimension(w, "d", "f")
    alike = mtf.einsum([w, f], reduced_dims=[E])
    return {"y": mtf.einsum([features["x"], w], reduced_dims=[D]), "alike": alike}


def operations(joint) -> Counter:
    graph = joint._run.get_concrete_function(
        tf.constant(0, tf.int64),
        [part.read_value() for part in joint._slices],
        [[tf.zeros([4, 4])]] * len(joint._own),
    ).graph
    return Counter(op.type for op in graph.get_operations())


def test_what_processors_compute_alike_is_there_once():
    program = t2tp.Program(product, FEATURES, **SPLIT, xla=True)
    found = operations(program._merged())
    # Two have the same slice of the weight: they multiply their rows of x by it together.
    assert found["MatMul"] == 2 + 2
    assert len(program._merged()._slices) == 2


def test_it_reads_the_values_that_variables_have_when_it_is_called():
    def change(mesh, features):
        del features
        w = weight(mesh)
        mtf.assign(mesh.graph.all_variables[0], 2.0 * w)
        return {}

    program = t2tp.Program(product, FEATURES, **SPLIT, xla=True)
    changing = t2tp.Program(
        change, FEATURES, **SPLIT, cluster=program.cluster, variables=program.variables
    )
    np.testing.assert_allclose(program({"x": X})["y"], np.tile(X.sum(1)[:, None], 6), rtol=1e-5)
    changing({"x": X})
    np.testing.assert_allclose(program({"x": X})["y"], np.tile(2 * X.sum(1)[:, None], 6), rtol=1e-5)
    np.testing.assert_array_equal(program({"x": X})["alike"], np.full((4, 4), 24.0))


def test_functions_and_conditions_of_a_model_author_work():
    @tf.function(autograph=False)
    def halved_if_large(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x / 2, lambda: x)

    def step(mesh, features):
        del mesh
        x = features["x"]
        return {"y": mtf.slicewise(halved_if_large, [x], splittable_dims=x.shape.dims)}

    x = np.abs(X) * np.repeat([[1], [-1]], 4, axis=0)
    program = t2tp.Program(step, FEATURES, **SPLIT, xla=True)
    np.testing.assert_array_equal(program({"x": x})["y"], np.concatenate([x[:4] / 2, x[4:]]))


def test_each_processor_leaves_a_loop_of_a_model_author_when_it_likes():
    """Here the first one has done with its own slice before the last one."""

    def doubled_up_to_hundred(x):
        return tf.while_loop(lambda y: tf.reduce_max(y) < 100.0, lambda y: [y * 2.0], [x])[0]

    def step(mesh, features):
        del mesh
        x = features["x"]
        return {"y": mtf.slicewise(doubled_up_to_hundred, [x], splittable_dims=x.shape.dims)}

    x = np.tile(np.array([64, 1, 32, 2, 16, 4, 8, 1], np.float32)[:, None], [1, 4])
    split = {"mesh_shape": "data:8", "layout": "batch:data"}
    program = t2tp.Program(step, FEATURES, **split, xla=True)
    np.testing.assert_array_equal(program({"x": x})["y"], np.full([8, 4], 128.0))


def test_each_processor_makes_draws_of_tensorflows_own():
    def step(mesh, features):
        del mesh
        x = features["x"]
        draw = lambda x: x + tf.random.uniform(x.shape)  # noqa: E731
        return {"y": mtf.slicewise(draw, [x], splittable_dims=x.shape.dims)}

    program = t2tp.Program(step, FEATURES, **SPLIT, xla=True)
    assert len(np.unique(program({"x": np.zeros_like(X)})["y"])) == X.size


def test_a_program_that_assigns_is_refused():
    def step(mesh, features):
        w = weight(mesh)
        mtf.assign(mesh.graph.all_variables[0], w + 1.0)
        return {"x": features["x"]}

    with pytest.raises(
        t2tp.LayoutError, match="only if it assigns and prints nothing, and here is 'assign'"
    ):
        t2tp.Program(step, FEATURES, **SPLIT, xla=True)


@pytest.mark.parametrize("effect", ["prints", "assigns"])
def test_a_function_of_a_model_author_that_prints_or_assigns_is_refused(effect):
    counter = tf.Variable(0.0)

    def with_effect(x):
        done = tf.print(x) if effect == "prints" else counter.assign_add(1.0).op
        with tf.control_dependencies([done]):
            return tf.identity(x)

    def step(mesh, features):
        del mesh
        x = features["x"]
        return {"y": mtf.slicewise(with_effect, [x], splittable_dims=x.shape.dims)}

    program = t2tp.Program(step, FEATURES, **SPLIT, xla=True)
    with pytest.raises(t2tp.LayoutError, match="assigns and prints nothing, and here is"):
        program({"x": X})


@pytest.mark.parametrize(
    "cluster", [Cluster(("GPU:0", "GPU:1", "GPU:2", "GPU:3")), Cluster(("CPU:0",) * 4, 0, 2)]
)
def test_gpus_and_several_processes_are_refused(cluster):
    with pytest.raises(t2tp.LayoutError, match="only if they are virtual CPUs of one process"):
        t2tp.Program(product, FEATURES, **SPLIT, cluster=cluster, xla=True)
