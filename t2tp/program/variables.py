"""Variables that exist only as slices: no device holds a global variable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import upstream
from t2tp.mesh.cluster import Cluster
from t2tp.mesh.layout import Layout, describe
from t2tp.program.initializers import initial_slice


class VariableHandle:
    """A stand-in for a variable's full-size master in the graph; we never make masters."""

    def __init__(self, name: str, initializer: object) -> None:
        """Makes the handle that `mtf.Variable` gets from `tf.get_variable`."""
        self.name = f"{name}:0"
        self.device = ""
        self.initializer = initializer


@contextlib.contextmanager
def handles_for_masters() -> Iterator[None]:
    """Makes `mtf.get_variable` create handles, not full-size master variables, in this context."""

    def make_handle(getter: Callable, name: str, *args: object, **kwargs: object) -> VariableHandle:
        del getter, args
        return VariableHandle(name, kwargs.get("initializer"))

    with tf1.variable_scope("", custom_getter=make_handle):
        yield


@contextlib.contextmanager
def fresh_variable_scopes() -> Iterator[None]:
    """While this is active, names of variable scopes are counted from the beginning.

    TensorFlow shares the counters (two graph collections) between all functions that a process
    traces, so the same model built a second time would find its scopes named `dense_1` instead of
    `dense`.
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


@dataclass(frozen=True)
class VariableSpec:
    """The properties of a variable, known before it exists.

    Attributes:
      name: its full name.
      shape: its global shape.
      dtype: what its slices are stored and updated in.
      initializer: see `initial_slice`.
      trainable: whether the optimizer changes it.
    """

    name: str
    shape: upstream.Shape
    dtype: tf.DType
    initializer: object
    trainable: bool

    @classmethod
    def from_variable(cls, variable: upstream.Variable) -> VariableSpec:
        """Reads the spec off a variable of an mtf graph built under `handles_for_masters`."""
        return cls(
            variable.name,
            variable.shape,
            variable.slice_dtype,
            variable.get_master().initializer,
            variable.trainable,
        )


class SlicedVariable:
    """A variable laid out over the mesh.

    Attributes:
      spec: its `VariableSpec`.
      slices: the `tf.Variable`s of the processors of this process, in their order.
    """

    def __init__(
        self, spec: VariableSpec, layout: Layout, cluster: Cluster, slices: list[tf.Variable]
    ) -> None:
        """Use `Variables.create`."""
        self.spec = spec
        self.slices = slices
        self._layout = layout
        self._cluster = cluster

    def slice_of(self, pnum: int) -> tf.Variable:
        """The slice of processor `pnum`, one of this process."""
        return self.slices[self._cluster.local_pnums.index(pnum)]

    def begin(self, pnum: int) -> tuple[int, ...]:
        """Global index at which processor `pnum`'s slice begins."""
        return self._layout.slice_begin(self.spec.shape, pnum)

    def owners(self) -> dict[tuple[int, ...], int]:
        """The first processor of any process that holds each distinct slice, by where it begins."""
        return self._first(range(self._layout.size))

    def local_owners(self) -> dict[tuple[int, ...], int]:
        """The first local processor that holds each distinct slice, by where it begins."""
        return self._first(self._cluster.local_pnums)

    def numpy(self) -> np.ndarray:
        """The global value, put together on the host: for tests and small models.

        Raises:
          ValueError: this process does not hold all of it.
        """
        owners = self.local_owners()
        if len(owners) < len(self.owners()):
            raise ValueError(
                f"Process {self._cluster.process_id} holds only a part of variable"
                f" {self.spec.name!r}: save a checkpoint, and read it from there."
            )
        whole = np.zeros(self.spec.shape.to_integer_list, self.spec.dtype.as_numpy_dtype)
        for pnum in owners.values():
            whole[self._layout.slices(self.spec.shape, pnum)] = self.slice_of(pnum).numpy()
        return whole

    def assign(self, value: np.ndarray) -> None:
        """Sets the slices of this process to those of a global value, such as an imported one.

        Raises:
          ValueError: it has another shape.
        """
        if np.shape(value) != tuple(self.spec.shape.to_integer_list):
            raise ValueError(
                f"Variable {self.spec.name!r} is {describe(self.spec.shape)}, and was given an"
                f" array of shape {list(np.shape(value))}."
            )
        for pnum, part in zip(self._cluster.local_pnums, self.slices, strict=True):
            region = self._layout.slices(self.spec.shape, pnum)
            part.assign(np.asarray(value)[region].astype(part.dtype.as_numpy_dtype))

    def _first(self, pnums: range) -> dict[tuple[int, ...], int]:
        first: dict[tuple[int, ...], int] = {}
        for pnum in pnums:
            first.setdefault(self.begin(pnum), pnum)
        return first


class Variables:
    """All variables of a run: programs that train and that evaluate share one of these.

    Each process has the slices of its own processors.

    Attributes:
      cluster: the `Cluster` whose devices hold the slices.
    """

    def __init__(self, layout: Layout, cluster: Cluster, seed: int = 0) -> None:
        """Creates an empty collection.

        Args:
          layout: how variables are split.
          cluster: the devices that hold the slices, and which of them are in this process.
          seed: of the initial values.
        """
        self._layout = layout
        self.cluster = cluster
        self._seed = seed
        self._by_name: dict[str, SlicedVariable] = {}

    def __iter__(self) -> Iterator[SlicedVariable]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> SlicedVariable:
        return self._by_name[name]

    def __len__(self) -> int:
        return len(self._by_name)

    def create(self, spec: VariableSpec) -> SlicedVariable:
        """Makes a variable with its initial value, or returns the one of that name.

        Raises:
          ValueError: a variable of that name has another shape or dtype.
        """
        if spec.name in self._by_name:
            old = self._by_name[spec.name].spec
            if (old.shape, old.dtype) != (spec.shape, spec.dtype):
                raise ValueError(
                    f"Variable {spec.name!r} is {describe(old.shape)} {old.dtype.name} and is now"
                    f" asked for"
                    f" as {describe(spec.shape)} {spec.dtype.name}."
                )
            return self._by_name[spec.name]
        size = self._layout.slice_size(spec.shape)
        slices = []
        values: dict[tuple[int, ...], tf.Tensor] = {}  # Processors with the same slice share it.
        for pnum in self.cluster.local_pnums:
            begin = self._layout.slice_begin(spec.shape, pnum)
            with tf.device(self.cluster.devices[pnum]):
                if begin not in values:
                    values[begin] = initial_slice(
                        spec.initializer,
                        spec.name,
                        spec.shape.to_integer_list,
                        begin,
                        size,
                        spec.dtype,
                        self._seed,
                    )
                slices.append(tf.Variable(values[begin], name=spec.name, trainable=spec.trainable))
        self._by_name[spec.name] = SlicedVariable(spec, self._layout, self.cluster, slices)
        return self._by_name[spec.name]
