"""Outputs of a program: slices that stay on their devices until a value is read."""

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from t2tp import upstream
from t2tp.mesh.layout import Layout
from t2tp.processes.cluster import Cluster


@dataclass(frozen=True, eq=False, repr=False)
class Outputs(Mapping[str, np.ndarray]):
    """The outputs of a step by name; a value is fetched from the devices when it is read.

    Attributes:
      cluster: which processors are in this process.
      slices: slices of each local processor, gathered along `dims_to_gather`.
      reads: values that are being read already.
      row: the step's index in the stacked outputs of a loop; () if the step ran alone.
    """

    layout: Layout
    cluster: Cluster
    shapes: Mapping[str, upstream.Shape]
    slices: list[dict[str, tf.Tensor]]
    reads: Mapping[str, Future[np.ndarray]] = field(default_factory=dict)
    row: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self.reads:
            return self.reads[name].result()[self.row]
        shape = self.shapes[name]
        first = self.slices[0][name].numpy()[self.row]
        if first.shape == tuple(shape.to_integer_list):
            return first
        whole = np.zeros(shape.to_integer_list, first.dtype)
        for region, value in self.slices_of(name):
            whole[region] = value
        return whole

    def slices_of(self, name: str) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
        """Yields (region in the output, value) of each local processor's slice of an output."""
        shape = self.shapes[name]
        gathered = dims_to_gather(self.layout, self.cluster, shape)
        for pnum, slices in zip(self.cluster.local_pnums, self.slices, strict=True):
            region = tuple(
                slice(None) if i in gathered else part
                for i, part in enumerate(self.layout.slices(shape, pnum))
            )
            real = tuple(
                slice(part.stop) if part.stop is None else slice(part.stop - part.start)
                for part in region
            )
            yield region, slices[name].numpy()[self.row][real]


def dims_to_gather(layout: Layout, cluster: Cluster, shape: upstream.Shape) -> list[int]:
    """Finds the dimensions along which to gather a tensor so that every process has all of it.

    Often a process's processors together have all slices, and nothing has to be gathered. The
    processors of a process are consecutive. So if a process lacks slices, it lacks them along the
    first axes of the mesh.

    Returns:
      indices of dimensions, the same in all processes.
    """
    splitting = {axis.name for dim in shape.dims for axis in layout.axes_of(dim.name)}
    axes = [axis for axis in layout.mesh_shape.dims if axis.name in splitting and axis.size > 1]
    processes = [
        [layout.coordinates(pnum) for pnum in cluster.pnums_of(process_id)]
        for process_id in range(cluster.num_processes)
    ]

    def everyone_has_all(some: Sequence[upstream.Dimension]) -> bool:
        """Whether each process has a processor at every combination of coordinates."""
        combinations = math.prod(axis.size for axis in some)
        return all(
            len({tuple(place[axis.name] for axis in some) for place in places}) == combinations
            for places in processes
        )

    count = next(count for count in range(len(axes) + 1) if everyone_has_all(axes[count:]))
    lacking = set(axes[:count])
    return [i for i, dim in enumerate(shape.dims) if lacking & set(layout.axes_of(dim.name))]
