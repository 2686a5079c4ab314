"""Slices of tensors: the unit in which checkpoints are written and read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
        shape = parts[0].shape
        kinds = sorted({f"{part.dtype.name} {part.shape}" for part in parts})
        if len(kinds) > 1:
            raise ValueError(
                f"Slices of {name!r} disagree on its dtype or shape: {' and '.join(kinds)}."
            )
        num_saved = sum(math.prod(part.size) for part in parts)
        if num_saved != math.prod(shape) or _overlap(parts):
            raise ValueError(
                f"The {len(parts)} slices of {name!r} have {num_saved} elements together, and have"
                f" to cover the {math.prod(shape)} of its shape {shape} exactly once."
            )


def _overlap(parts: Sequence[Slice]) -> bool:
    """Cuts a tensor at all slices' borders, and looks for a cell that two slices cover."""
    ends = [tuple(map(sum, zip(part.begin, part.size, strict=True))) for part in parts]
    borders = [np.unique(each) for each in zip(*(part.begin for part in parts), *ends, strict=True)]
    count = np.zeros([max(len(each) - 1, 0) for each in borders], np.int64)
    for part, end in zip(parts, ends, strict=True):
        box = zip(borders, zip(part.begin, end, strict=True), strict=True)
        count[tuple(slice(*np.searchsorted(border, cut)) for border, cut in box)] += 1
    return bool((count > 1).any())
