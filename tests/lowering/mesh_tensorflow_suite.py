"""Runs the tests of the mesh-tensorflow package on our engine.

`load` imports a second instance of a test module, whose `mtf` is ours. Our `mtf` has a `Lowering`
that makes a program from the graph that a test has built; exporting a tensor runs the program. The
original modules do not change.
"""

import contextlib
import importlib.util
import inspect
import sys
import types
import unittest
import unittest.mock
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import test_util

from t2tp import mtf
from t2tp.mesh.layout import Layout
from t2tp.program.program import Graph, Program
from t2tp.program.variables import handles_for_masters
from tests.mesh import layouts


def load(name: str, mesh_shape: str | None) -> types.ModuleType:
    """Loads the test module `mesh_tensorflow.<name>` on our engine.

    Args:
      name: name of the module, such as `ops_test`.
      mesh_shape: the mesh to run graphs on, in a layout that splits all dimensions that it can;
        None for the mesh and the layout that each test asks for.
    """
    door = _Door("mtf", mesh_shape)
    module = _second_instance(name)
    utilities = _second_instance("test_utils")
    utilities.mtf = door
    module.mtf = door
    for alias in ("mtf_test_utils", "test_utils"):
        if hasattr(module, alias):
            setattr(module, alias, utilities)
    for case in test_cases(module):
        case.setUp = _with_handles(case.setUp)
    return module


def test_cases(module: types.ModuleType) -> list[type[unittest.TestCase]]:
    """Returns the test classes of a module."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, unittest.TestCase)
    ]


def lowers_a_graph(case: unittest.TestCase) -> bool:
    """Returns whether a test lowers its graph; other tests only inspect the graph."""
    method = inspect.unwrap(getattr(case, case._testMethodName))
    return "owering" in inspect.getsource(method) or "onvert" in inspect.getsource(method)


def _with_handles(set_up: Callable[[unittest.TestCase], None]) -> Callable:
    """Wraps `setUp` so that a test creates handles of variables, not the variables themselves."""

    def setUp(self: unittest.TestCase) -> None:
        set_up(self)
        handles = contextlib.ExitStack()
        handles.enter_context(handles_for_masters())
        self.addCleanup(handles.close)

    return setUp


def split_as_much_as_possible(graph: mtf.Graph, mesh_shape: str) -> Layout:
    """Returns a layout that splits as many dimensions of the graph as possible."""
    axes = [axis.name for axis in Layout(mesh_shape).mesh_shape]
    candidates = [
        (dim, axis)
        for i, dim in enumerate(layouts.dimension_names(graph))
        for axis in (*axes[i % len(axes) :], *axes[: i % len(axes)])
    ]
    return Layout(mesh_shape, layouts.rules_that_work(graph, mesh_shape, candidates))


def _second_instance(name: str) -> types.ModuleType:
    spec = importlib.util.find_spec(f"mesh_tensorflow.{name}")
    module = importlib.util.module_from_spec(spec)
    lent = {"mock": unittest.mock, "tensorflow_probability": _tensorflow_probability()}
    lent = {name: lent[name] for name in lent if importlib.util.find_spec(name) is None}
    only_eager = unittest.mock.patch.object(
        test_util, "run_in_graph_and_eager_modes", lambda: lambda test: test
    )
    with unittest.mock.patch.dict(sys.modules, lent), only_eager:
        spec.loader.exec_module(module)
    return module


def _tensorflow_probability() -> types.ModuleType:
    """Returns a replacement of a package that may be missing.

    It has only the function that `layers_test` calls.
    """

    def correlation(x: tf.Tensor, sample_axis: int | list[int], event_axis: int) -> tf.Tensor:
        samples = np.moveaxis(x.numpy(), event_axis, 0).reshape(x.shape[event_axis], -1)
        return tf.constant(np.corrcoef(samples))

    module = types.ModuleType("tensorflow_probability")
    module.stats = types.SimpleNamespace(correlation=correlation)
    return module


class _Door(types.ModuleType):
    """Our `mtf`, with a mesh implementation and a lowering under mesh-tensorflow's names."""

    def __init__(self, name: str, mesh_shape: str | None) -> None:
        super().__init__(name)
        self.placement_mesh_impl = types.SimpleNamespace(PlacementMeshImpl=_AskedFor)
        self.Lowering = lambda graph, mesh_to_impl: _Lowering(graph, mesh_to_impl, mesh_shape)

    def __getattr__(self, name: str) -> object:
        return getattr(mtf, name)


class _AskedFor:
    """The mesh and the layout that a test asks for."""

    def __init__(self, shape: object, layout: object, devices: list[str]) -> None:
        self.shape = mtf.convert_to_shape(shape)
        # Several tests pass {} for no rules.
        self.rules = sorted(mtf.convert_to_layout_rules(layout or [])._pairs)


class _Lowering:
    """The methods of a lowering that tests call."""

    def __init__(self, graph, mesh_to_impl, mesh_shape):
        ((mesh, asked_for),) = mesh_to_impl.items()
        self._built = (graph, mesh)
        if mesh_shape is None:
            sizes = {axis.name: axis.size for axis in asked_for.shape}
            self._layout = Layout(sizes, dict(asked_for.rules))
        else:
            self._layout = split_as_much_as_possible(graph, mesh_shape)

    def export_to_tf_tensor(self, x: mtf.Tensor) -> tf.Tensor:
        program = _ProgramOfGraph(Graph(*self._built, {"x": x}), self._layout)
        return tf.constant(program()["x"])

    def copy_masters_to_slices(self) -> None:
        """Does nothing: our variables have no masters."""

    def copy_slices_to_masters(self) -> None:
        """Does nothing: our variables have no masters."""


class _ProgramOfGraph(Program):
    """A program of a graph that exists already."""

    def __init__(self, built: Graph, layout: Layout) -> None:
        self._built = built
        super().__init__(step_fn=lambda mesh, features: {}, layout=layout)

    def _build(self, step: tf.Tensor, feature_slices: list[tf.Tensor]) -> Graph:
        return self._built
