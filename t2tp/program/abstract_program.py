"""Device-free programs, for shape and cost analysis."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from t2tp.garbage_collection import without_garbage_collection
from t2tp.mesh.collective_log import Collective
from t2tp.mesh.layout import Layout
from t2tp.processes.cluster import Cluster
from t2tp.program.program import Feature, Program, StepFn
from t2tp.program.variables import SlicedVariable, StagedVariable, Variables, VariableSpec

tf1 = tf.compat.v1


class AbstractProgram(Program):
    """A step's program on a mesh of any size, without devices and without memory for variables.

    It is lowered like any program, so it has the collectives and slices of a program that runs.
    Operations that only compute locally (`Hooks.is_local`) become placeholders. The program cannot
    be called. On one processor there are no collectives, and the program is not lowered.
    """

    _computes = False

    def __init__(
        self,
        step_fn: StepFn,
        features: Mapping[str, Feature] | None = None,
        *,
        mesh_shape: str = "",
        layout: str | Layout = "",
    ) -> None:
        """Builds the graph; arguments as for `Program`.

        Raises:
          LayoutError: the layout cannot work for a tensor of the model.
        """
        self._trace_graph = FuncGraph("on_paper")
        self._is_lowered = False
        layout = Layout.from_arguments(mesh_shape, layout)
        cluster = Cluster(("",) * layout.size)
        super().__init__(
            step_fn,
            features,
            layout=layout,
            cluster=cluster,
            variables=_AbstractVariables(layout, cluster),
        )

    def place(self, features: Mapping[str, np.ndarray]) -> NoReturn:
        """Raises ValueError: there are no devices to put features on."""
        raise ValueError(
            "This program has been built on no devices: make a t2tp.Program to run it."
        )

    def collective_log(self) -> list[Collective]:
        """The collectives of a step, one by one, in the order of the program."""
        if self.layout.size > 1 and not self._is_lowered:  # One processor has no collectives.
            built = self._first_built or self._build_for_shapes()
            slices = [variable.slices[0] for variable in self._used]
            with self._trace_graph.as_default(), without_garbage_collection():
                pnum, step = (tf1.placeholder(dtype, []) for dtype in (tf.int32, tf.int64))
                self._lower(built, pnum, step, slices)
            self._is_lowered = True
        return list(self._log)

    def _check_kernels(self, xla: bool | None) -> None:
        """Checks nothing: no kernel runs."""

    def _graph_for_shapes(self) -> tf.Graph:
        """Returns the TensorFlow graph in which the step will be lowered."""
        return self._trace_graph


class _AbstractVariables(Variables):
    """Variables whose slices have shapes and no values."""

    def create_all(self, specs: Sequence[VariableSpec]) -> list[SlicedVariable | StagedVariable]:
        """Creates the variables of a program, without collecting garbage first."""
        return [self.create(spec) for spec in specs]

    def create(self, spec: VariableSpec) -> SlicedVariable:
        """Creates one slice; it represents the slices of all processors on all stages."""
        if spec.name not in self:
            shape = self._layout.slice_size(spec.shape)
            slices = [UninitializedVariable(shape=shape, dtype=spec.dtype, name=spec.name)]
            self._by_name[spec.name] = SlicedVariable(spec, self._layout, self.cluster, slices)
        return self[spec.name]
