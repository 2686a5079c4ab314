"""Variables that exist only as slices: no device holds a global variable."""

from __future__ import annotations

import contextlib
import gc
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import upstream
from t2tp.building.mesh import declared, names_by_stage
from t2tp.mesh.layout import Layout
from t2tp.mesh.layout_text import describe
from t2tp.processes.cluster import Cluster
from t2tp.program.initializers import initial_slice

# If new variables have this many bytes, garbage is collected before they are created. A collection
# takes 0.1 seconds, as long as computing initial values of this size.
_LARGE = 1 << 25

# Last part of the name of a variable's moving average.
AVERAGE = "average"


@contextlib.contextmanager
def handles_for_masters() -> Iterator[None]:
    """Makes `mtf.get_variable` create handles, not full-size master variables, in this context.

    A handle has the attributes of the master variable that mesh-tensorflow and t2tp read.
    """

    def make_handle(getter: Callable, name: str, *args: Any, **kwargs: Any) -> SimpleNamespace:
        initializer = kwargs.get("initializer")
        return SimpleNamespace(name=f"{name}:0", device="", initializer=initializer)

    with tf1.variable_scope("", custom_getter=make_handle):
        yield


@contextlib.contextmanager
def fresh_variable_scopes() -> Iterator[None]:
    """Restarts the counters of variable scopes' names in this context, and restores them after it.

    TensorFlow shares the counters (two graph collections) between all functions that a process
    traces. Without a reset, a model that is built a second time would get scopes named `dense_1`
    instead of `dense`.
    """
    graph = tf1.get_default_graph()
    shared = [graph.get_collection_ref(key) for key in (("__varscope",), ("__variable_store",))]
    saved = [list(ref) for ref in shared]
    for ref in shared:
        ref.clear()
    try:
        yield
    finally:
        for ref, values in zip(shared, saved, strict=True):
            ref[:] = values


def average_of(name: str) -> str:
    """Returns the name of the moving average (`ema_decay`) of the variable `name`."""
    return f"{name}/{AVERAGE}"


@dataclass(frozen=True)
class VariableSpec:
    """The properties of a variable, known before it exists.

    Attributes:
      shape: its global shape.
      dtype: dtype in which its slices are stored and updated.
      initializer: see `initial_slice`.
      trainable: whether the optimizer changes it.
      frozen: whether it is a weight that the optimizer does not change. (A variable that is neither
        trainable nor frozen is state, such as a counter.)
      names_by_stage: its name on each pipeline stage, None on a stage without its layer; empty if
        it belongs to no stage.
    """

    name: str
    shape: upstream.Shape
    dtype: tf.DType
    initializer: object
    trainable: bool
    frozen: bool = False
    names_by_stage: tuple[str | None, ...] = ()

    @classmethod
    def from_variable(cls, variable: upstream.Variable) -> VariableSpec:
        """Reads the spec of a variable in an mtf graph built under `handles_for_masters`."""
        return cls(
            variable.name,
            variable.shape,
            variable.slice_dtype,
            variable.get_master().initializer,
            variable.trainable,
            declared(variable).is_frozen,
            names_by_stage(variable.mesh, variable.name) or (),
        )

    def on_stage(self, stage: int) -> VariableSpec | None:
        """Returns the spec of a stage's own variable; None if the stage lacks the layer."""
        name = self.names_by_stage[stage]
        return None if name is None else replace(self, name=name, names_by_stage=())


class SlicedVariable:
    """A variable laid out over the mesh, or over one stage of it.

    Attributes:
      pnums: the processors that have a slice: all of them, or the processors of a stage.
      local_pnums: the processors of this process that have a slice.
      slices: the `tf.Variable`s of the processors in `local_pnums`, in this order.
    """

    def __init__(
        self,
        spec: VariableSpec,
        layout: Layout,
        cluster: Cluster,
        slices: list[tf.Variable],
        stage: int | None = None,
    ) -> None:
        """Use `Variables.create`."""
        self.spec = spec
        self.slices = slices
        self._layout = layout
        self._cluster = cluster
        self.pnums = _pnums(layout, range(layout.size), stage)
        self.local_pnums = _pnums(layout, cluster.local_pnums, stage)

    def held_by(self, pnum: int) -> SlicedVariable:
        """Returns the variable itself; a `StagedVariable` returns the stage's variable."""
        return self

    def slice_of(self, pnum: int) -> tf.Variable:
        """The slice of the local processor `pnum`."""
        return self.slices[self.local_pnums.index(pnum)]

    def begin(self, pnum: int) -> tuple[int, ...]:
        """Global index at which processor `pnum`'s slice begins."""
        return self._layout.slice_begin(self.spec.shape, pnum)

    def region(self, pnum: int) -> tuple[slice, ...]:
        """The index into the global variable that selects processor `pnum`'s slice."""
        return self._layout.slices(self.spec.shape, pnum)

    def value_of(self, pnum: int) -> tf.Variable | tf.Tensor:
        """The value of processor `pnum`'s slice without its padding."""
        return real_part(self.slice_of(pnum), self.region(pnum))

    def owners(self) -> dict[tuple[int, ...], int]:
        """Maps the begin of each distinct slice to the first processor that has the slice.

        The processor may be in any process. A slice that is all padding has no owner.
        """
        return self._first(self.pnums)

    def local_owners(self) -> dict[tuple[int, ...], int]:
        """Like `owners`, but considers only the processors of this process."""
        return self._first(self.local_pnums)

    def numpy(self) -> np.ndarray:
        """Assembles the global value on the host: for tests and small models.

        Raises:
          ValueError: this process does not hold all slices.
        """
        owners = self.local_owners()
        if len(owners) < len(self.owners()):
            raise ValueError(
                f"Process {self._cluster.process_id} holds only a part of variable"
                f" {self.spec.name!r}: save a checkpoint, and read it from there."
            )
        whole = np.zeros(self.spec.shape.to_integer_list, self.spec.dtype.as_numpy_dtype)
        for pnum in owners.values():
            whole[self.region(pnum)] = self.value_of(pnum).numpy()
        return whole

    def assign(self, value: np.ndarray) -> None:
        """Sets the slices of this process from a global value, such as an imported one.

        Raises:
          ValueError: the value has another shape than the variable.
        """
        if np.shape(value) != tuple(self.spec.shape.to_integer_list):
            raise ValueError(
                f"Variable {self.spec.name!r} is {describe(self.spec.shape)}, and was given an"
                f" array of shape {list(np.shape(value))}."
            )
        for pnum, part in zip(self.local_pnums, self.slices, strict=True):
            own = np.asarray(value)[self.region(pnum)].astype(part.dtype.as_numpy_dtype)
            part.assign(padded(own, part.shape))

    def _first(self, pnums: Sequence[int]) -> dict[tuple[int, ...], int]:
        first: dict[tuple[int, ...], int] = {}
        for pnum in pnums:
            if all(_sizes(self.region(pnum))):
                first.setdefault(self.begin(pnum), pnum)
        return first


def padded(value: Any, sizes: Sequence[int]) -> Any:
    """Pads an array or tensor with zeros to `sizes`, at the end of each dimension."""
    missing = [(0, size - n) for size, n in zip(sizes, value.shape, strict=True)]
    if not any(n for _, n in missing):
        return value
    return np.pad(value, missing) if isinstance(value, np.ndarray) else tf.pad(value, missing)


def real_part(value: Any, region: Sequence[slice]) -> Any:
    """Removes the padding from the slice that covers `region` of a global array or tensor."""
    sizes = _sizes(region)
    return value if list(value.shape) == sizes else value[tuple(map(slice, sizes))]


def _sizes(region: Sequence[slice]) -> list[int]:
    return [part.stop - part.start for part in region]


def _pnums(layout: Layout, pnums: Sequence[int], stage: int | None) -> Sequence[int]:
    """Returns the processors that belong to a stage; all of them if `stage` is None."""
    return pnums if stage is None else [p for p in pnums if layout.stage_of(p) == stage]


@dataclass(frozen=True, eq=False)
class StagedVariable:
    """A variable of the graph that is the weight of a different layer on each pipeline stage.

    Attributes:
      spec: spec of the variable in the graph, which all stages share.
      by_stage: the variable of each stage.
    """

    spec: VariableSpec
    by_stage: Sequence[SlicedVariable]
    layout: Layout
    cluster: Cluster

    @property
    def slices(self) -> list[tf.Variable]:
        """The slices of the local processors, in the processors' order."""
        return [self.slice_of(pnum) for pnum in self.cluster.local_pnums]

    def held_by(self, pnum: int) -> SlicedVariable:
        """The variable that processor `pnum` has."""
        return self.by_stage[self.layout.stage_of(pnum)]

    def slice_of(self, pnum: int) -> tf.Variable:
        """The slice of the local processor `pnum`."""
        return self.held_by(pnum).slice_of(pnum)


def machine_memory() -> int:
    """Returns the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Variables:
    """All variables of a run, shared by its training and evaluation programs.

    Each process has the slices of its own processors.

    Attributes:
      cluster: the `Cluster` whose devices hold the slices.
      base: reference to the checkpoint with the frozen weights, as in the metadata of checkpoints;
        see `t2tp.checkpoint.frozen_base`. None: checkpoints have all variables.
      base_elsewhere: a directory to try before the recorded path of the base.
      loaded_from_base: names of the frozen weights that have been loaded.
    """

    def __init__(self, layout: Layout, cluster: Cluster, seed: int = 0) -> None:
        """Creates an empty collection; `seed` is the seed of the initial values."""
        self._layout = layout
        self.cluster = cluster
        self._seed = seed
        self._by_name: dict[str, SlicedVariable] = {}
        self.base: dict[str, Any] | None = None
        self.base_elsewhere: Path | None = None
        self._lent: dict[str, Variables] = {}
        self.loaded_from_base: set[str] = set()

    def __iter__(self) -> Iterator[SlicedVariable]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> SlicedVariable:
        return self._by_name[name]

    def __len__(self) -> int:
        return len(self._by_name)

    def lend(self, scope: str, variables: Variables) -> None:
        """Lets programs read the variables of another collection, below a scope.

        A variable `<scope>/<name>` of a program is created in `variables`, and not part of this
        collection: checkpoints, averages and counts do not have it.
        """
        self._lent[f"{scope}/"] = variables

    def create_all(self, specs: Sequence[VariableSpec]) -> list[SlicedVariable | StagedVariable]:
        """Creates the variables of a program; arguments and errors as for `create`.

        Raises:
          ValueError: the slices on CPUs have more bytes than this machine's memory.
        """
        new = [spec for spec in specs if spec.name not in self]
        slices = sum(
            math.prod(self._layout.slice_size(spec.shape)) * spec.dtype.size for spec in new
        )
        num_bytes = slices * len(self.cluster.local_pnums)
        memory = machine_memory()
        if self.cluster.on_cpu and num_bytes > memory:
            raise ValueError(
                f"its variables have {num_bytes / 1e9:,.1f} GB in this process, and this machine"
                f" has {memory / 1e9:,.1f} GB of memory"
            )
        if num_bytes >= _LARGE:
            # A discarded program is in reference cycles, so its variables take memory until a
            # garbage collection.
            gc.collect()
        return [self.create(spec) for spec in specs]

    def create(self, spec: VariableSpec) -> SlicedVariable | StagedVariable:
        """Creates a variable with its initial value, or returns the existing one of that name.

        Raises:
          ValueError: a variable of that name has another shape or dtype.
        """
        for scope, variables in self._lent.items():
            if spec.name.startswith(scope):
                return variables.create(spec)
        if not spec.names_by_stage:
            return self._create(spec, None)
        # A dummy variable, never saved, for a stage that lacks the layer.
        unused = replace(spec, initializer=tf1.zeros_initializer(), names_by_stage=())
        by_stage = [
            self._make(unused, stage) if own is None else self._create(own, stage)
            for stage, own in enumerate(map(spec.on_stage, range(len(spec.names_by_stage))))
        ]
        return StagedVariable(spec, by_stage, self._layout, self.cluster)

    def _create(self, spec: VariableSpec, stage: int | None) -> SlicedVariable:
        if spec.name in self._by_name:
            old = self._by_name[spec.name].spec
            if (old.shape, old.dtype) != (spec.shape, spec.dtype):
                raise ValueError(
                    f"Variable {spec.name!r} is {describe(old.shape)} {old.dtype.name} and is now"
                    f" asked for"
                    f" as {describe(spec.shape)} {spec.dtype.name}."
                )
            return self._by_name[spec.name]
        self._by_name[spec.name] = self._make(spec, stage)
        return self._by_name[spec.name]

    def _make(self, spec: VariableSpec, stage: int | None) -> SlicedVariable:
        """Creates a variable's slices on the processors of a stage, or on all processors."""
        size = self._layout.slice_size(spec.shape)
        slices = []
        values: dict[tuple[int, ...], tf.Tensor] = {}  # Equal slices share one value.
        for pnum in _pnums(self._layout, self.cluster.local_pnums, stage):
            begin = self._layout.slice_begin(spec.shape, pnum)
            with tf.device(self.cluster.devices[pnum]):
                if begin not in values:
                    region = self._layout.slices(spec.shape, pnum)
                    own = initial_slice(
                        spec.initializer,
                        spec.name,
                        spec.shape.to_integer_list,
                        [part.start for part in region],
                        _sizes(region),
                        spec.dtype,
                        self._seed,
                    )
                    values[begin] = padded(own, size)
                slices.append(tf.Variable(values[begin], name=spec.name, trainable=spec.trainable))
        return SlicedVariable(spec, self._layout, self.cluster, slices, stage)
