"""Slices of tensors: the unit in which checkpoints are written and read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Slice:
    """A rectangular slice of a named tensor.

    Attributes:
      name: the tensor's full name.
      shape: the tensor's global shape; () for a scalar.
      begin: global index at which the slice begins, for each dimension.
      size: number of elements along each dimension.
    """

    name: str
    shape: tuple[int, ...]
    begin: tuple[int, ...]
    size: tuple[int, ...]
    dtype: tf.DType

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError(f"A slice of shape {self.size} does not name its tensor.")
        if not len(self.shape) == len(self.begin) == len(self.size):
            raise ValueError(
                f"A slice of {self.name!r} needs a begin and a size for each"
                f" dimension: shape {self.shape}, begin {self.begin}, size {self.size}."
            )
        if self.is_global:
            return
        bounds = zip(self.begin, self.size, self.shape, strict=True)
        if not all(begin >= 0 and 0 < size <= dim - begin for begin, size, dim in bounds):
            raise ValueError(
                f"The slice of {self.name!r} that begins at {self.begin} with size {self.size} is"
                f" empty or not inside the tensor's shape {self.shape}."
            )

    @classmethod
    def full(cls, name: str, shape: Iterable[int], dtype: tf.DType) -> Slice:
        """Returns the slice that is the full tensor."""
        shape = tuple(shape)
        return cls(name, shape, (0,) * len(shape), shape, dtype)

    def with_dtype(self, dtype: tf.DType) -> Slice:
        """Returns the same slice of a tensor of another dtype."""
        return replace(self, dtype=dtype)

    @property
    def is_global(self) -> bool:
        """Whether the slice covers the full tensor."""
        return self.size == self.shape and not any(self.begin)

    @property
    def spec(self) -> str:
        """The slice in TensorFlow's `shape_and_slices` syntax: "8192 256 0,2048:0,256"."""
        if self.is_global:
            return ""
        shape = " ".join(str(dim) for dim in self.shape)
        parts = zip(self.begin, self.size, strict=True)
        return f"{shape} {':'.join(f'{begin},{size}' for begin, size in parts)}"


def check_tiling(slices: Iterable[Slice]) -> None:
    """Raises ValueError unless every tensor's slices cover each of its elements exactly once.

    TensorFlow reports overlapping or missing slices only in reading, not in writing.
    """
    by_name: dict[str, list[Slice]] = {}
    for each in slices:
        by_name.setdefault(each.name, []).append(each)
    for name, parts in by_name.items():
        kinds = sorted({f"{part.dtype.name} {part.shape}" for part in parts})
        if len(kinds) > 1:
            raise ValueError(
                f"Slices of {name!r} disagree on its dtype or shape: {' and '.join(kinds)}."
            )
        _check_tiling_of_one(parts)


def _check_tiling_of_one(parts: list[Slice]) -> None:
    """Cuts a tensor at all slices' borders, and counts the slices that cover each cell."""
    name, shape = parts[0].name, parts[0].shape
    if 0 in shape:
        if len(parts) > 1:
            raise ValueError(f"{name!r} of shape {shape} has no elements but {len(parts)} slices.")
        return
    grid_lines = []
    for axis, dim in enumerate(shape):
        borders = {0, dim}
        for part in parts:
            borders.update((part.begin[axis], part.begin[axis] + part.size[axis]))
        grid_lines.append({border: index for index, border in enumerate(sorted(borders))})
    count = np.zeros([len(indices) - 1 for indices in grid_lines], np.int64)
    for part in parts:
        box = zip(grid_lines, part.begin, part.size, strict=True)
        count[tuple(slice(at[begin], at[begin + size]) for at, begin, size in box)] += 1
    if (count == 1).all():
        return
    cell = tuple(np.argwhere(count != 1)[0])
    where = tuple(list(indices)[index] for indices, index in zip(grid_lines, cell, strict=True))
    num_saved = sum(math.prod(part.size) for part in parts)
    raise ValueError(
        f"The slices of {name!r} have to cover its shape {shape} exactly once: the element at"
        f" {where} is in {count[cell]} of its {len(parts)} slices. Together the slices have"
        f" {num_saved} elements; the tensor has {math.prod(shape)}."
    )
