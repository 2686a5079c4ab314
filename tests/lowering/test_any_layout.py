"""Random graphs have the same values and gradients on any mesh and in any layout.

They are compared with mesh-tensorflow's operations and engine on one device. Graphs in head-tail
order are compared with our engine on one device.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from t2tp import mtf
from t2tp.program.program import FeatureOperation
from tests.lowering import oracle
from tests.mesh import layouts

# mesh-tensorflow itself, which `t2tp.mtf` has imported.
THEIRS = sys.modules["mesh_tensorflow"]
MESHES = ["x:2", "x:3", "x:4", "x:8", "x:2;y:2", "x:4;y:2", "y:2;x:3", "x:1;y:2", "x:2;y:2;z:2"]
INPUTS = {"p": "a:8;b:4", "q": "b:4;c:6", "r": "c:6;d:12", "s": "a:8;d:12;b:4"}
ARRAYS = {
    name: np.random.default_rng(i)
    .normal(size=mtf.convert_to_shape(shape).to_integer_list)
    .astype(np.float32)
    for i, (name, shape) in enumerate(INPUTS.items())
}


@dataclass
class Given:
    """The arguments of one operation of a graph.

    Attributes:
      m: the module with the operations: `t2tp.mtf`, or mesh-tensorflow.
      t, u: tensors.
      dim: a dimension of `t`.
      n: a number from 0 to 99.
      fresh: a name for a dimension that no other operation uses.
    """

    m: ModuleType
    t: mtf.Tensor
    u: mtf.Tensor
    dim: mtf.Dimension
    n: int
    fresh: str

    def ramp(self, dim: mtf.Dimension) -> mtf.Tensor:
        """Returns 0, 1, 2, ... along a dimension, to make elements differ."""
        return self.m.range(self.t.mesh, dim, tf.float32)


def _einsum(g: Given) -> mtf.Tensor:
    shared = [d for d in g.t.shape if d in g.u.shape.dims]
    reduced = shared[: 1 + g.n % 2]
    return g.m.einsum([g.t, g.u], reduced_dims=reduced) * 0.3


def _gather(g: Given) -> mtf.Tensor:
    batch = [d for d in g.t.shape if d != g.dim][: g.n % 2]
    shape = mtf.Shape([*batch, mtf.Dimension(g.fresh, 4)])
    ids = (np.arange(shape.size) * (g.n + 1) % g.dim.size).reshape(shape.to_integer_list)
    ids = g.m.import_tf_tensor(g.t.mesh, ids.astype(np.int32), shape)
    return g.m.gather(g.t, ids, g.dim)


def _merge(g: Given) -> mtf.Tensor:
    dims = g.t.shape.dims[:2]
    return g.m.replace_dimensions(g.t, dims, mtf.Dimension(g.fresh, mtf.Shape(dims).size))


def _divide(g: Given) -> mtf.Tensor:
    parts = [mtf.Dimension(g.fresh, g.dim.size // 2), mtf.Dimension(g.fresh + "_low", 2)]
    return g.m.replace_dimensions(g.t, g.dim, parts) if g.dim.size % 2 == 0 else g.t


def _loop(g: Given) -> mtf.Tensor:
    def body(i: mtf.Tensor, x: mtf.Tensor) -> list[mtf.Tensor]:
        return [i + 1, g.m.sin(x) + g.m.reduce_mean(x, reduced_dim=g.dim)]

    start = g.m.constant(g.t.mesh, 0, dtype=tf.int32)
    return g.m.while_loop(lambda i, x: g.m.less(i, 3), body, [start, g.m.stop_gradient(g.t)])[1]


def _top_k(g: Given) -> mtf.Tensor:
    distinct = g.t + g.ramp(g.dim) * 1e-2
    return g.m.top_k(distinct, g.dim, mtf.Dimension(g.fresh, 1 + g.n % g.dim.size))[0]


OPERATIONS: dict[str, Callable[[Given], mtf.Tensor]] = {
    "sin": lambda g: g.m.sin(g.t),
    "tanh": lambda g: g.m.tanh(g.t),
    "softmax": lambda g: g.m.softmax(g.t, g.dim),
    "log_softmax": lambda g: g.m.log_softmax(g.t, g.dim) * 0.1,
    "sum": lambda g: g.m.reduce_sum(g.t, reduced_dim=g.dim) * 0.2,
    "mean": lambda g: g.m.reduce_mean(g.t, output_shape=mtf.Shape([g.dim])),
    "max": lambda g: g.m.reduce_max(g.t + g.ramp(g.dim) * 1e-2, reduced_dim=g.dim),
    "min": lambda g: g.m.reduce_min(g.t - g.ramp(g.dim) * 1e-2, reduced_dim=g.dim),
    "cumsum": lambda g: g.m.cumsum(g.t, g.dim, exclusive=g.n % 2 == 0) * 0.2,
    "shift": lambda g: g.m.shift(g.t, g.n % 7 - 3, g.dim, wrap=g.n % 2 == 0),
    "top_k": _top_k,
    "gather": _gather,
    "transpose": lambda g: g.m.transpose(g.t, mtf.Shape(g.t.shape.dims[::-1])),
    "add": lambda g: g.t + g.u,
    "multiply": lambda g: g.t * g.u,
    "einsum": _einsum,
    "maximum": lambda g: g.m.maximum(g.t, g.m.sin(g.t) * 1.5 + 0.1),
    "where": lambda g: g.m.where(g.m.greater(g.t, 0.1), g.t, g.u),
    "slice": lambda g: g.m.slice(g.t, 1, g.dim.size - 1, g.dim.name) if g.dim.size > 1 else g.t,
    "pad": lambda g: g.m.pad(g.t, [g.n % 3, 1], g.dim.name),
    "concat": lambda g: g.m.concat([g.t, g.t * 2.0], g.dim.name),
    "stack": lambda g: g.m.stack([g.t, g.m.sin(g.t)], g.fresh, axis=g.n % 2),
    "unstack": lambda g: g.m.add_n(g.m.unstack(g.t, g.dim)),
    "split": lambda g: g.m.split(g.t, g.dim, g.dim.size)[g.n % g.dim.size],
    "recompute": lambda g: g.m.recompute_grad(lambda t: g.m.sin(t) * t, [g.t]),
    "loop": _loop,
    "rename": lambda g: g.m.rename_dimension(g.t, g.dim.name, g.fresh),
    "merge": _merge,
    "divide": _divide,
}
# Maximum number of elements of a tensor; larger tensors would only cost time.
LARGEST = 4000

Recipe = list[tuple[str, int, int, int]]
recipes = st.lists(
    st.tuples(
        st.sampled_from(sorted(OPERATIONS)),
        st.integers(0, 99),
        st.integers(0, 99),
        st.integers(0, 99),
    ),
    min_size=3,
    max_size=6,
)


def make_step(recipe: Recipe, m: ModuleType) -> Callable:
    """Returns a step that applies each operation of the recipe to earlier tensors."""

    def step(mesh: mtf.Mesh, features: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        pool = list(features.values())
        for i, (kind, first, second, n) in enumerate(recipe):
            t, u = pool[-1 - first % len(pool)], pool[-1 - second % len(pool)]
            if not t.shape.dims:
                continue
            dim = t.shape.dims[n % t.shape.ndims]
            union = {*t.shape.dims, *u.shape.dims}
            names = {d.name for d in union}
            if len(names) < len(union) or mtf.Shape(list(union)).size > LARGEST:
                u = t
            result = OPERATIONS[kind](Given(m, t, u, dim, n, f"new_{i}"))
            if result.size <= LARGEST:
                pool.append(result)
        made = pool[len(features) :]
        loss = m.add_n([m.reduce_sum(m.sin(t + 0.5)) for t in made])
        grads = m.gradients([loss], list(features.values()))
        outputs = {f"made_{i}": t for i, t in enumerate(made)}
        learned = zip(features, grads, strict=True)
        return outputs | {f"d_{name}": d for name, d in learned if d is not None}

    return step


FEATURES = {name: (mtf.convert_to_shape(INPUTS[name]), array) for name, array in ARRAYS.items()}


def run_ours(recipe: Recipe, mesh_shape: str = "", layout: str = "") -> dict[str, np.ndarray]:
    return oracle.run_ours(make_step(recipe, mtf), FEATURES, mesh_shape, layout)


def graph_of(recipe: Recipe) -> mtf.Graph:
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        features = {
            name: mtf.import_tf_tensor(mesh, ARRAYS[name], shape) for name, shape in INPUTS.items()
        }
        make_step(recipe, mtf)(mesh, features)
        return graph


def assert_same(values, reference, layout):
    assert set(values) == set(reference)
    for name, wanted in reference.items():
        scale = max(1.0, np.abs(wanted).max())
        np.testing.assert_allclose(
            values[name], wanted, rtol=0, atol=1e-5 * scale, err_msg=f"{name} {layout}"
        )


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(recipes, st.sampled_from(MESHES), st.data())
def test_any_mesh_and_layout_give_the_same_values_and_gradients(recipe, mesh_shape, data):
    layout = layouts.drawn(graph_of(recipe), mesh_shape, data)
    values = run_ours(recipe, mesh_shape, layout)
    assert_same(values, oracle.run(make_step(recipe, THEIRS), FEATURES), layout)


@pytest.mark.ci_only
@pytest.mark.slow
@settings(max_examples=20, deadline=None, derandomize=True)
@given(recipes, st.sampled_from(MESHES), st.data())
def test_features_in_head_tail_order_give_the_same(recipe, mesh_shape, data):
    """Features have head-tail order along each split dimension that allows it.

    Operations keep the order or undo it.
    """
    layout = layouts.drawn(graph_of(recipe), mesh_shape, data)

    def all_dims(self, layout):
        return self.outputs[0].shape.dims

    with mock.patch.object(FeatureOperation, "head_tail_dims", all_dims):
        values = run_ours(recipe, mesh_shape, layout)
    assert_same(values, run_ours(recipe), layout)
