"""A program: a step in named dimensions. It is traced once and runs on all devices together."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from absl import logging

from t2tp import upstream
from t2tp.argument_types import checked
from t2tp.building.mesh import Mesh, names_by_stage
from t2tp.garbage_collection import without_garbage_collection
from t2tp.lowering.fast_graph import fast_graph
from t2tp.lowering.lowering import GraphLowering, all_operations
from t2tp.lowering.mesh_impl import Backend, LaidOutTensor, SpmdMeshImpl
from t2tp.lowering.operation import Operation, check_operation, signature_of
from t2tp.lowering.slice_shapes import resized
from t2tp.lowering.staged_sums import sum_in_stages
from t2tp.mesh.collective_log import Collective, summarize
from t2tp.mesh.collectives import Collectives
from t2tp.mesh.layout import Layout, LayoutError
from t2tp.mesh.layout_conflicts import check_tensor, check_vectors
from t2tp.mesh.layout_text import describe
from t2tp.mesh.layout_warnings import layout_warnings
from t2tp.mesh.sizes import check_consistent_sizes
from t2tp.mesh.storage import axes_at_rest
from t2tp.processes.cluster import Cluster, connect, threads_of_an_operation
from t2tp.processes.exact_environment import ISA, ISA_VARIABLE, needs_isa
from t2tp.processes.process_spec import THREADS_VARIABLE
from t2tp.program.executor import Executor
from t2tp.program.outputs import Outputs, dims_to_gather
from t2tp.program.segments import segment_features, segments_of_rows
from t2tp.program.variables import (
    Variables,
    VariableSpec,
    fresh_variable_scopes,
    handles_for_masters,
    machine_memory,
    padded,
)


class Feature:
    """An input of a program: its global shape in named dimensions, and its dtype."""

    @checked
    def __init__(
        self,
        shape: upstream.Shape | str | Sequence,
        dtype: tf.DType | np.dtype | type | str = tf.float32,
    ) -> None:
        """Declares an input; the shape may be text such as `"batch:16;length:128"`."""
        self.shape = upstream.convert_to_shape(shape)
        self.dtype = tf.as_dtype(dtype)


class FeatureOperation(Operation, upstream.ImportLaidOutTensorOperation):
    """Imports a feature into the graph; each processor is fed its slice."""

    is_feature = True

    def __init__(self, mesh: Mesh, part: tf.Tensor, shape: upstream.Shape, name: str) -> None:
        super().__init__(mesh, LaidOutTensor([part]), shape, name)
        # All dimensions are splittable; auto_mtf reads this.
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_all_dimensions_as_splittable()
        )


StepFn = Callable[[Mesh, dict[str, upstream.Tensor]], Mapping[str, upstream.Tensor]]


@dataclass
class Graph:
    """A step's mtf graph, its mesh, and the step's outputs by name."""

    graph: upstream.Graph
    mesh: Mesh
    outputs: dict[str, upstream.Tensor]


@dataclass(frozen=True)
class PlacedFeatures:
    """Features already cut and put on the devices, ready for a call.

    Attributes:
      slices: each local processor's slice of each feature, in the order of the program's features.
      max_segments: see `segments_of_rows`.
    """

    slices: list[list[tf.Tensor]]
    max_segments: int = 0


class Program:
    """A step on a mesh of devices.

    ```python
    def step_fn(mesh, features):  # builds a graph of mtf.Tensors, which runs each step
        w = mtf.get_variable(mesh, "w", mtf.Shape([d_in, d_out]))
        return {"y": mtf.einsum([features["x"], w], reduced_dims=[d_in])}

    program = t2tp.Program(
        step_fn,
        {"x": t2tp.Feature("batch:16;d_in:8")},
        mesh_shape="data:2;model:4",
        layout="batch:data;d_out:model",
    )
    y = program({"x": x})["y"]  # numpy in, numpy out
    ```

    Attributes:
      layout: the `Layout`.
      cluster: the `Cluster`.
      variables: the `Variables`, which several programs can share.
      segment_features: the features whose number of segments selects the traced program.
    """

    _computes = True  # Whether it can run.

    @checked
    def __init__(
        self,
        step_fn: StepFn,
        features: Mapping[str, Feature] | None = None,
        *,
        mesh_shape: str | Mapping[str, int] = "",
        layout: str | Mapping[str, Any] | Layout = "",
        cluster: Cluster | None = None,
        variables: Variables | None = None,
        seed: int = 0,
        xla: bool | None = None,
    ) -> None:
        """Builds the graph, checks its layout, and creates the variables that do not exist yet.

        Args:
          step_fn: `(mesh, features) -> outputs`. Features and outputs are dictionaries of tensors.
            It is called more than once, each time to build an mtf graph.
          features: inputs of the step.
          mesh_shape: mesh axes and their sizes: `data:2;model:4`, or `{"data": 2, "model": 4}`.
          layout: rules such as `batch:data;d_ff:model`, or `{"batch": "data", "d_ff": "model"}`; or
            a `Layout` with its own mesh shape.
          cluster: the devices, from `connect`. Default: all GPUs, or virtual CPU devices.
          variables: variables to share with another program of the same layout and cluster.
          seed: seed of initial values and random operations.
          xla: True: compile the whole step with XLA; requires one device. False: do not use XLA.
            None: on a single GPU, where the cost of kernel launches dominates, compile the whole
            step, unless it prints. In all other cases compile only the regions that operations
            mark, because outside these regions TensorFlow's kernels are as fast or faster
            (docs/benchmarks.md). With `exact_sums`, None means False.

        Raises:
          LayoutError: the layout cannot work for the model, or `xla` is set on several devices.
          TypeError: an argument has the wrong type.
          ValueError: the mesh's size is not the number of devices, a variable is requested in two
            shapes, or a dimension has two sizes in a sum or product.
        """
        self.layout = Layout.from_arguments(mesh_shape, layout)
        self._step_fn = step_fn
        self._features = dict(features or {})
        for name, feature in self._features.items():
            if not isinstance(feature, Feature):
                raise TypeError(
                    f"Program: feature {name!r} is a {type(feature).__name__}, and must be a"
                    " t2tp.Feature: the arrays are given later, when the program is called"
                )
        self._seed = seed
        built = self._build_for_shapes()
        self._first_built: Graph | None = built
        self._check(built)
        if xla and self.layout.size > 1:
            raise LayoutError(
                f"xla compiles the step of one device, and {self.layout} has {self.layout.size}:"
                " leave xla out (--noxla)."
            )
        self.cluster = cluster or connect(self.layout.size)
        if len(self.cluster.devices) != self.layout.size:
            raise ValueError(
                f"Mesh shape {self.layout.mesh_text!r} has {self.layout.size} processors, and the"
                f" cluster has {len(self.cluster.devices)} devices."
            )
        self._check_kernels(xla)
        self.variables = (
            Variables(self.layout, self.cluster, seed) if variables is None else variables
        )
        self._used = self.variables.create_all(
            [VariableSpec.from_variable(v) for v in built.graph.all_variables]
        )
        self._output_shapes = {name: t.shape for name, t in built.outputs.items()}
        self._output_dtypes = {name: t.dtype for name, t in built.outputs.items()}
        self._log: list[Collective] = []
        operations = all_operations(built.graph.operations)
        prints = any(isinstance(op, upstream.PrintOperation) for op in operations)
        by_default = self.layout.size == 1 and not self.cluster.on_cpu and not prints
        compiles_step = by_default if xla is None else xla
        local_devices = len(self.cluster.local_pnums)
        self._target = Backend(
            on_cpu=self.cluster.on_cpu,
            compiles_regions=xla is None and not compiles_step and not self.layout.exact_sums,
            compiles_step=compiles_step,
            uses_xla=xla is not False,
            memory=machine_memory() / local_devices if self.cluster.on_cpu else math.inf,
        )
        self.segment_features = (
            [] if self.cluster.on_cpu else segment_features(built.graph.operations)
        )
        self._set_target(self._target)
        self._calls = Executor(self.layout, self.cluster)
        self._reader = None if self.cluster.on_cpu else ThreadPoolExecutor(1, "reader")

    def __call__(
        self, features: Mapping[str, np.ndarray] | PlacedFeatures | None = None, step: int = 0
    ) -> Outputs:
        """Runs the step on all devices.

        Args:
          features: global arrays by name, or the result of `place`. Any object that supports
            indexing by a tuple of slices can replace an array.
          step: the number of the step, for random operations and schedules.

        Returns:
          the global outputs by name. The mapping fetches a value when it is read, and includes
          `summaries/<name>` for each `mtf.scalar_summary(name, x)`.

        Raises:
          DifferentProgramsError: another process has built another program.
          tf.errors.OpError: the step failed on a processor. If other processors were waiting in a
            collective, no program of this process can run collectives any more.
          CollectiveTimeoutError: processors waited too long for others.
          MissingProcessError: another process of the cluster failed, ended or does not answer.
        """
        placed = features if isinstance(features, PlacedFeatures) else self.place(features or {})
        return self.loop([placed], step)[0]

    def loop(
        self, batches: Sequence[PlacedFeatures], step: int = 0, size: int = 1
    ) -> list[Outputs]:
        """Runs one step for each batch, in a single launch on all devices.

        A launch costs the host some microseconds for each variable, however many steps it runs.

        Args:
          batches: the results of `place`, one for each step.
          step: the number of the first step.
          size: the largest number of batches of a launch. XLA compiles a loop of exactly `size`
            steps, and another for fewer steps. The body of both is the same computation, which may
            be rounded differently from a step that is compiled alone (`size=1`).

        Returns:
          the outputs of each step.

        Raises:
          ValueError: there are no batches, or more than `size`.
          DifferentProgramsError, tf.errors.OpError, CollectiveTimeoutError, MissingProcessError:
            see `__call__`.
        """
        count = len(batches)
        if not 1 <= count <= size:
            raise ValueError(f"A loop of size {size} runs 1 to {size} steps, not {count}.")
        self._first_built = None  # Frees memory: programs are rarely inspected once they run.
        segments = [batch.max_segments for batch in batches]
        program = self._for_segments(min(segments) and max(segments))  # 0: unknown.
        function = program.trace(size, count == size)
        # The traced function has `size` batches as arguments. The loop ends before the copies.
        padded_batches = [*batches, *[batches[-1]] * (size - count)]
        by_pnum = dict(
            zip(
                self.cluster.local_pnums,
                zip(*(b.slices for b in padded_batches), strict=True),
                strict=True,
            )
        )
        slices = self._calls(
            lambda pnum: program._call(pnum, function, (step, step + count), by_pnum[pnum]),
            program._log,
            count,
        )
        # A read from a GPU waits for all steps started before the read. A training reads the loss
        # of a step after it has started the next step, and would wait for that step, too. So the
        # reads of scalars begin here, before the next step starts.
        reads = {
            name: self._reader.submit(slices[0][name].numpy)
            for name, shape in self._output_shapes.items()
            if self._reader is not None and not shape.dims
        }
        return [
            Outputs(self.layout, self.cluster, self._output_shapes, slices, reads, row)
            for row in ([()] if size == 1 else [(i,) for i in range(count)])
        ]

    @property
    def device_memory(self) -> float:
        """Bytes of each device for a step's tensors, as far as they are known; otherwise infinite.

        The allocator of a GPU ends a step with an error, and XLA stores fewer tensors than the step
        has.
        """
        return math.inf if self.compiles_step else self._target.memory

    @property
    def compiles_step(self) -> bool:
        """Whether XLA compiles the whole step."""
        return self._target.compiles_step

    def for_conversion(self) -> Program:
        """Returns this program for another runtime, such as LiteRT.

        The two programs share their variables. The returned program uses no kernel that only
        TensorFlow has. For example, it does not update a cache in place, but makes a changed
        copy.
        """
        program = copy.copy(self)
        program._set_target(Backend(on_cpu=False, compiles_regions=False, compiles_step=False))
        return program

    def _set_target(self, target: Backend) -> None:
        """Sets the target, for which the program is not traced yet."""
        self._target = target
        self._traces: dict[tuple[int, bool], tf.types.experimental.ConcreteFunction] = {}
        self._by_segments = {target.max_segments: self}

    def _for_segments(self, max_segments: int) -> Program:
        """Returns the program that is traced for rows with at most `max_segments` segments."""
        if max_segments not in self._by_segments:
            program = copy.copy(self)
            program._set_target(self._target._replace(max_segments=max_segments))
            self._by_segments[max_segments] = program
        return self._by_segments[max_segments]

    def on_tensors(self, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Runs a one-device program on global tensors by name, inside a `tf.function`.

        Exported models call this. The step reads and assigns the program's `variables`.

        Raises:
          ValueError: the mesh has several devices.
        """
        if self.layout.size > 1:
            raise ValueError(
                f"A program of {self.layout.size} devices cannot run inside a tf.function: build it"
                " without a mesh."
            )
        return self.trace()(
            tf.constant(0, tf.int32),
            tf.constant([0, 1], tf.int64),
            [v.slices[0] for v in self._used],
            [
                [
                    _as_bits(features[name], self._placed_dtype(feature))
                    for name, feature in self._features.items()
                ]
            ],
        )

    def place(self, features: Mapping[str, np.ndarray]) -> PlacedFeatures:
        """Cuts features into slices and copies each local processor's slices to its device.

        Raises:
          ValueError: a feature is missing, unknown, not of the declared shape, or not an array.
        """
        if set(features) != set(self._features):
            raise ValueError(
                f"The program needs features {sorted(self._features)}, not {sorted(features)}."
            )
        features = {name: _as_array(name, features[name]) for name in self._features}
        for name, feature in self._features.items():
            shape, declared = tuple(features[name].shape), tuple(feature.shape.to_integer_list)
            if shape != declared:
                raise ValueError(f"Feature {name!r} has shape {shape}, not {declared} as declared.")
        cut_features: dict[tuple, np.ndarray] = {}
        slices = []
        for pnum in self.cluster.local_pnums:
            own_slices = []
            for name, feature in self._features.items():
                begin = self.layout.slice_begin(feature.shape, pnum)
                if (name, begin) not in cut_features:
                    part = self.layout.slices(feature.shape, pnum)
                    value = features[name]
                    value = np.asarray(value[part] if part else value, feature.dtype.as_numpy_dtype)
                    value = padded(value, self.layout.slice_size(feature.shape))
                    value = value.view(self._placed_dtype(feature).as_numpy_dtype)
                    cut_features[name, begin] = value
                with tf.device(self.cluster.devices[pnum]):
                    own_slices.append(tf.constant(cut_features[name, begin]))
            slices.append(own_slices)
        rows = [features[name] for name in self.segment_features]
        rows = [np.asarray(x[(slice(None),) * len(x.shape)]) for x in rows]
        return PlacedFeatures(slices, segments_of_rows(rows))

    def trace(self, size: int = 1, is_whole: bool = True) -> tf.types.experimental.ConcreteFunction:
        """Returns the program of one processor for `loop`; the first call traces it.

        Args:
          size: the largest number of steps of a launch.
          is_whole: whether a launch has exactly `size` steps. Only XLA distinguishes: it compiles
            a loop with a constant number of steps, whose end a GPU finds without asking the host.
        """
        is_whole = size == 1 or (is_whole and self._target.compiles_step)
        if (size, is_whole) not in self._traces:
            slices = [
                tf.TensorSpec(self.layout.slice_size(f.shape), self._placed_dtype(f))
                for f in self._features.values()
            ]
            function = tf.function(
                partial(self._program, size if is_whole else None),
                autograph=False,
                jit_compile=self._target.compiles_step or None,
            )
            with without_garbage_collection():
                self._traces[size, is_whole] = function.get_concrete_function(
                    tf.TensorSpec([], tf.int32),
                    tf.TensorSpec([2], tf.int64),
                    [v.slices[0] for v in self._used],
                    [slices] * size,
                )
        return self._traces[size, is_whole]

    def collectives(self) -> dict[tuple[str, tuple[str, ...]], tuple[int, int]]:
        """Totals of a step's collectives: (kind, mesh axes) -> (number, bytes from each processor).

        A collective in a loop over microbatches counts once per microbatch. A collective in a loop
        whose length is known only at run time counts once.
        """
        return summarize(self.collective_log())

    def collective_log(self) -> list[Collective]:
        """The collectives of a step, one by one, in the order of the program."""
        self.trace()
        return list(self._log)

    def graph(self) -> tuple[upstream.Graph, dict[str, upstream.Tensor]]:
        """Returns the step's mtf graph and outputs for inspection; rebuilt if the step has run."""
        built = self._first_built or self._build_for_shapes()
        return built.graph, built.outputs

    def _call(
        self,
        pnum: int,
        function: Callable[..., dict[str, tf.Tensor]],
        span: tuple[int, int],
        batches: Sequence[list[tf.Tensor]],
    ) -> dict[str, tf.Tensor]:
        """Runs processor `pnum`'s part, in its own thread.

        `span` is the number of the first step, and the first number after the last step.
        """
        begin, end = span
        with tf.device("CPU:0"):
            # With Python numbers, TensorFlow would cache a tensor of each number on each device.
            start, limit, delta = (tf.constant(np.int64(x)) for x in (begin, end + 1, end - begin))
        with tf.device(self.cluster.devices[pnum]):
            return function(
                tf.constant(pnum, tf.int32),
                # The two numbers of `span`, made by a kernel on the device: a copy to a GPU would
                # wait for the previous step.
                tf.raw_ops.Range(start=start, limit=limit, delta=delta),
                [v.slice_of(pnum) for v in self._used],
                list(batches),
            )

    def _program(
        self,
        count: int | None,
        pnum: tf.Tensor,
        span: tf.Tensor,
        variable_slices: list[tf.Variable],
        batches: list[list[tf.Tensor]],
    ) -> dict[str, tf.Tensor]:
        """The program of one processor; traced once.

        Args:
          count: the number of steps; None: the length of `span`, at most `len(batches)`.
          pnum: the processor.
          span: see `_call`.
          variable_slices: the processor's slices of the variables.
          batches: the processor's slices of the features of each step.

        Returns:
          the processor's slices of the outputs. With several batches, they are stacked.
        """
        # TensorFlow places every int32 argument on the first CPU. A loop that uses such an argument
        # would run there too, and copy the argument in each iteration.
        pnum = tf.identity(pnum)

        def run(step: tf.Tensor, feature_slices: list[tf.Tensor]) -> dict[str, tf.Tensor]:
            feature_slices = [
                _as_bits(x, feature.dtype)
                for x, feature in zip(feature_slices, self._features.values(), strict=True)
            ]
            return self._lower(self._build(step, feature_slices), pnum, step, variable_slices)

        if len(batches) == 1:
            return run(span[0], batches[0])
        return self._loop_of_steps(run, span, count, batches)

    def _loop_of_steps(
        self,
        run: Callable[[tf.Tensor, list[tf.Tensor]], dict[str, tf.Tensor]],
        span: tf.Tensor,
        count: int | None,
        batches: list[list[tf.Tensor]],
    ) -> dict[str, tf.Tensor]:
        """Runs a step for each batch, one after another.

        TensorFlow prepares each launch of a function on the host, which takes some microseconds for
        each variable. A model with a thousand variables then waits for the host in every step. If
        one launch runs K steps, the host works once in K steps.

        Args:
          run: (number of the step, its features) -> its outputs by name; traced once.
          span: see `_call`.
          count: the number of steps. With a constant, XLA knows when the loop ends, and a GPU need
            not ask the host after each step. None: as `span` says, at most the number of batches.
          batches: the features of each step.

        Returns:
          the outputs, stacked: [number of batches, ...]. The rows after the last step are zero.
        """
        stacked = [tf.stack(parts) for parts in zip(*batches, strict=True)]
        end = tf.cast(span[1] - span[0], tf.int32) if count is None else count

        def body(i: tf.Tensor, arrays: dict[str, tf.TensorArray]) -> tuple:
            values = run(span[0] + tf.cast(i, tf.int64), [x[i] for x in stacked])
            return i + 1, {name: arrays[name].write(i, value) for name, value in values.items()}

        arrays = {
            name: tf.TensorArray(
                self._output_dtypes[name], len(batches), element_shape=self._part_shape(shape)
            )
            for name, shape in self._output_shapes.items()
        }
        _, arrays = tf.while_loop(
            lambda i, _: i < end, body, (tf.constant(0), arrays), parallel_iterations=1
        )
        return {name: array.stack() for name, array in arrays.items()}

    def _part_shape(self, shape: upstream.Shape) -> list[int]:
        """Returns the shape of a processor's part of an output; see `_gathered`."""
        sizes = list(self.layout.slice_size(shape))
        for i in dims_to_gather(self.layout, self.cluster, shape):
            sizes[i] = shape.dims[i].size
        return sizes

    def _placed_dtype(self, feature: Feature) -> tf.DType:
        """Returns the dtype in which a feature is passed to the devices.

        On GPUs it is uint32 instead of int32, because TensorFlow keeps int32 arguments on the host.
        """
        would_stay_on_host = feature.dtype == tf.int32 and not self.cluster.on_cpu
        return tf.uint32 if would_stay_on_host else feature.dtype

    def _lower(
        self, built: Graph, pnum: tf.Tensor, step: tf.Tensor, variable_slices: list[tf.Variable]
    ) -> dict[str, tf.Tensor]:
        """Lowers a step's graph for one processor; returns its slices of the outputs."""
        _check_same_variables(built.graph, [variable.spec for variable in self._used])
        exact = bool(self.layout.exact_sums)
        collectives = Collectives(
            self.layout.axes, self.cluster.devices, pnum, self.cluster.nccl, exact
        )
        mesh_impl = SpmdMeshImpl(
            self.layout,
            collectives,
            pnum,
            step,
            self._seed,
            {v.spec.name: s for v, s in zip(self._used, variable_slices, strict=True)},
            self._target,
            partial(names_by_stage, built.mesh),
            self._computes,
        )
        if self._target.sums_in_stages:
            sum_in_stages()
        with fast_graph():
            lowering = GraphLowering(built.graph, built.mesh, mesh_impl, built.outputs.values())
            outputs = {
                name: self._gathered(tensor.shape, lowering.slice(tensor), collectives)
                for name, tensor in built.outputs.items()
            }
        self._log = collectives.log
        return outputs

    def _gathered(
        self, shape: upstream.Shape, part: tf.Tensor, collectives: Collectives
    ) -> tf.Tensor:
        """Gathers an output along the dimensions in which some process lacks slices."""
        dims = dims_to_gather(self.layout, self.cluster, shape)
        for i in dims:
            axis = self.layout.axis_index(shape.dims[i].name)
            assert axis is not None  # `dims_to_gather` returns only split dimensions.
            part = collectives.allgather(part, axis, i)
        return resized(part, self._part_shape(shape)) if dims else part

    def _build(self, step: tf.Tensor, feature_slices: list[tf.Tensor]) -> Graph:
        """Builds the step's mtf graph on tensors of the current TensorFlow graph."""
        # mesh-tensorflow's optimizers and schedules read the step by tf.train.get_global_step().
        tf1.add_to_collection(tf1.GraphKeys.GLOBAL_STEP, step)
        with fresh_variable_scopes(), handles_for_masters():
            graph = upstream.Graph()
            mesh = Mesh(graph, step, self.layout)
            features = {
                name: FeatureOperation(mesh, part, feature.shape, name).outputs[0]
                for (name, feature), part in zip(
                    self._features.items(), feature_slices, strict=True
                )
            }
            outputs = _outputs(self._step_fn(mesh, features))
            outputs |= {
                f"summaries/{op.name}": op.outputs[0]
                for op in graph.operations
                if isinstance(op, upstream.ScalarSummaryOperation)
            }
        return Graph(graph, mesh, outputs)

    def _graph_for_shapes(self) -> tf.Graph:
        """Returns the TensorFlow graph in which `_build_for_shapes` builds."""
        return tf.Graph()

    def _build_for_shapes(self) -> Graph:
        """Builds the step's mtf graph on placeholders, only to find variables and shapes."""
        for name, feature in self._features.items():
            check_tensor(self.layout, name, feature.shape)
        with self._graph_for_shapes().as_default(), without_garbage_collection():
            parts = [
                tf1.placeholder(f.dtype, self.layout.slice_size(f.shape))
                for f in self._features.values()
            ]
            return self._build(tf1.placeholder(tf.int64, []), parts)

    def _check(self, built: Graph) -> None:
        """Checks that the layout works for all tensors; warns of rules and axes without effect."""
        shapes = [f.shape for f in self._features.values()]
        has_microbatches = any(
            isinstance(op, upstream.WhileLoopOperation) for op in built.graph.operations
        )
        for op in all_operations(built.graph.operations):
            needs_vectors = self.layout.exact_sums and not signature_of(op).any_slice
            for tensor in op.outputs:
                check_tensor(self.layout, tensor.name.removesuffix(":0"), tensor.shape)
                shapes.append(tensor.shape)
                if needs_vectors and tensor.dtype.is_floating:
                    check_vectors(self.layout, tensor.name, tensor.shape, has_microbatches)
            if isinstance(op, (upstream.BinaryOpWithBroadcasting, upstream.EinsumOperation)):
                check_consistent_sizes(op.name, op.inputs)
            # mesh-tensorflow declares that no dimension of an imported tensor may be split. The
            # check would reject them, although they are already slices in this layout.
            if not isinstance(op, upstream.ops.ImportLaidOutTensorOperation):
                check_operation(op, self.layout)
        self._check_storage(built.graph.trainable_variables)
        for warning in layout_warnings(self.layout, shapes):
            logging.warning(warning)

    def _check_kernels(self, xla: bool | None) -> None:
        """Checks that the kernels' results do not depend on the mesh, as `exact_sums` promises."""
        number = f"exact_sums={self.layout.exact_sums}"
        if not self.layout.exact_sums:
            return
        if not self.cluster.on_cpu or xla:
            raise LayoutError(
                f"{number} is known to hold for TensorFlow's kernels on CPUs only, not for"
                f" {'XLA' if self.cluster.on_cpu else 'GPUs'}: set exact_sums=0."
            )
        if os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0":
            raise LayoutError(
                f"{number} does not hold for oneDNN's matmuls, which depend on the number of rows:"
                " set the environment variable TF_ENABLE_ONEDNN_OPTS=0."
            )
        if needs_isa() and os.environ.get(ISA_VARIABLE) not in ("SSE41", ISA):
            raise LayoutError(
                f"{number} does not hold for oneDNN's matmuls with AVX2: set the environment"
                f" variable {ISA_VARIABLE}={ISA} before the start."
            )
        if (threads := threads_of_an_operation()) != 1:
            raise LayoutError(
                f"{number} needs one thread for each operation, and there are {threads}; how they"
                " divide a matmul depends on its size: set the environment variable"
                f" {THREADS_VARIABLE}=1 before the start."
            )

    def _check_storage(self, variables: list[upstream.Variable]) -> None:
        """Checks that ZeRO shards something; warns of weights that it cannot shard."""
        stage = self.layout.storage.stage
        if not stage or self.layout.size == 1 or not variables:
            return
        shapes = [v.shape for v in variables]
        if not any(axes_at_rest(dim.name) for shape in shapes for dim in shape.dims):
            raise LayoutError(
                f"zero_stage={stage} shards none of the {len(variables)} variables: {self.layout}."
                " It shards over zero_axes, by default the axes that split the batch, if these do"
                " not split the variable already. Name other axes, or set zero_stage=0."
            )
        unsharded = [v.name for v in variables if self.layout.at_rest.stays_whole(v.shape)]
        if unsharded:
            logging.warning(
                f"ZeRO leaves {len(unsharded)} of {len(variables)} variables whole on each device:"
                f" {', '.join(unsharded)}"
            )


def _outputs(returned: object) -> dict[str, upstream.Tensor]:
    """Returns a step's outputs after checking that they are mtf tensors by name."""
    if not isinstance(returned, Mapping):
        raise TypeError(
            "A step must return its outputs by name, as in {'loss': loss}, but this one returned"
            f" {returned if returned is None else type(returned).__name__}."
        )
    for name, value in returned.items():
        if not isinstance(value, upstream.Tensor):
            if value is None:
                hint = "None (mtf.gradients gives None where a loss does not depend on a variable)"
            else:
                hint = type(value).__name__
            raise TypeError(f"The step's output {name!r} is {hint}, and must be an mtf tensor.")
    return dict(returned)


def _check_same_variables(graph: upstream.Graph, known: Iterable[VariableSpec]) -> None:
    """Checks that a step creates the same variables as when it was first built."""
    shapes = {spec.name: spec.shape for spec in known}
    for variable in graph.all_variables:
        before = shapes.get(variable.name)
        if before is None or before != variable.shape:
            raise ValueError(
                f"The step creates variable {variable.name!r} {describe(variable.shape)}, but did"
                f" not when it was first built"
                f"{'' if before is None else f' (then it was {describe(before)})'}: a step is built"
                " more than once, and must give its variables the same names and shapes each time."
                " Do not name them by a counter or at random."
            )


def _as_array(name: str, value: Any) -> Any:
    """Returns a feature's value; lists of lists are converted to an array."""
    if hasattr(value, "shape"):
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"Feature {name!r} is not an array: its rows differ in length.") from error
    if array.dtype.kind not in "biufc":
        raise ValueError(f"Feature {name!r} is not an array of numbers: {str(value)[:40]!r}.")
    return array


def _as_bits(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Reinterprets the bits of a tensor."""
    return tf.identity(x) if x.dtype == dtype else tf.bitcast(x, dtype)
