"""The axes of a mesh, and joint axes, which consist of several axes of the mesh.

The layout rule `batch:data+expert` splits `batch` over two axes of the mesh, `data` first: the
batch is cut along `data`, and each part again along `expert`. The *joint axis* `data+expert` splits
the batch. Functions that accept a mesh axis also accept a joint axis. An axis is identified by an
index: the mesh's own axes have the first indices, in the order of the mesh, and joint axes get the
next indices when they are first used.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from t2tp import upstream

JOIN = "+"


class MeshAxes:
    """The axes of a mesh by index, joint ones included."""

    def __init__(self, mesh_shape: upstream.Shape) -> None:
        """Begins with the mesh's own axes."""
        self.mesh_shape = mesh_shape
        self._parts: list[tuple[int, ...]] = [(i,) for i in range(mesh_shape.ndims)]
        self._dims = list(mesh_shape.dims)

    @property
    def shape(self) -> upstream.Shape:
        """All axes known so far, joint ones after the mesh's own, as the dimensions of a shape.

        A joint axis is named after its parts: `data+expert`.
        """
        return upstream.Shape(self._dims)

    def index(self, parts: Sequence[int]) -> int:
        """Returns the index of the axis that consists of `parts`; adds the axis if it is new.

        `parts` are the indices of one or more axes of the mesh, the major axis first.
        """
        parts = tuple(parts)
        if parts not in self._parts:
            dims = [self._dims[part] for part in parts]
            name = JOIN.join(dim.name for dim in dims)
            self._parts.append(parts)
            self._dims.append(upstream.Dimension(name, math.prod(dim.size for dim in dims)))
        return self._parts.index(parts)

    def parts(self, axis: int) -> tuple[int, ...]:
        """Returns the mesh's own axes that an axis consists of, the major one first."""
        return self._parts[axis]

    def separate(self, axes: Iterable[int]) -> list[int]:
        """Returns all of the mesh's own axes that `axes` consist of, in the mesh's order."""
        return sorted({part for axis in axes for part in self._parts[axis]})

    def size(self, axis: int) -> int:
        """Returns the number of parts into which an axis splits a dimension."""
        return self._dims[axis].size

    def coordinate(self, axis: int, pnum: Any) -> Any:
        """Returns the coordinate of processor `pnum`, an integer or a scalar, on an axis."""
        sizes = self.mesh_shape.to_integer_list
        index = None
        for part in self._parts[axis]:
            stride = math.prod(sizes[part + 1 :])  # Between the numbers of two neighbours.
            place = pnum // stride % sizes[part]
            index = place if index is None else index * sizes[part] + place
        return index

    def groups(self, axes: Sequence[int]) -> list[list[int]]:
        """Returns each processor's group along some of the mesh's own axes.

        Returns:
          a list for each processor: the processors that differ from this processor only in their
            coordinates on these axes, in the order of the coordinates (the last axis varies
            fastest).
        """
        numbers = np.arange(self.mesh_shape.size).reshape(self.mesh_shape.to_integer_list)
        rows = np.moveaxis(numbers, axes, range(-len(axes), 0)).reshape(
            -1, math.prod(map(self.size, axes))
        )
        group_of = {pnum: row for row in rows.tolist() for pnum in row}
        return [group_of[pnum] for pnum in range(self.mesh_shape.size)]
