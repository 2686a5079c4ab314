"""Imports a Hugging Face checkpoint slice by slice."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from t2tp import checkpoint
from t2tp.checkpoint import Slice
from t2tp.checkpoint.reading import DIMENSIONS, TRAINABLE
from t2tp.huggingface.model_directory import ModelDirectory
from t2tp.huggingface.tensor_map import MOST_ELEMENTS, TensorPiece, Variable
from t2tp.processes.cluster import ALONE, Cluster

Progress = Callable[[int], object]

# Metadata key: the Hugging Face model that a checkpoint was imported from.
SOURCE = "source"


@dataclass(frozen=True)
class _Box:
    """A slice of a variable. All its values are in one tensor of the source directory."""

    variable: Variable
    piece: TensorPiece
    begin: tuple[int, ...]
    size: tuple[int, ...]

    def read(self, source: ModelDirectory, dtype: tf.DType) -> tuple[Slice, np.ndarray]:
        """Returns the slice and its values in a dtype."""
        view = self.piece.view(source.tensor(self.piece.theirs).opened())
        # An expert's view has size 1 along the experts.
        begin = self.begin if self.piece.expert is None else (0, *self.begin[1:])
        value = _read(view, begin, self.size, dtype.as_numpy_dtype)
        return Slice(self.variable.name, self.variable.shape, self.begin, self.size, dtype), value


def import_tensors(
    source: ModelDirectory,
    variables: Sequence[Variable],
    directory: Path,
    dtype: str = "",
    progress: Progress = lambda count: None,
    cluster: Cluster = ALONE,
    origin: str = "",
) -> Path:
    """Writes the checkpoint of step 0 in `directory`, and returns the checkpoint's directory.

    The dtype "" keeps each tensor's dtype. `progress` is called with the number of values read
    since the last call. Each process of `cluster` writes its share of the slices. `origin` is the
    model's name on the Hub; by default the path of `source` is recorded as the origin.

    Raises:
      ConversionError: the dtype of a tensor is not supported.
      OSError: a file cannot be read or written.
    """
    dtypes = {each.name: _dtype(source, each, dtype) for each in variables}
    metadata = {
        DIMENSIONS: {each.name: list(each.dims) for each in variables},
        TRAINABLE: [each.name for each in variables],
        SOURCE: origin or str(source.path),
    }
    plan = _plan(variables)
    return checkpoint.save_in_parts(
        directory,
        0,
        (_part(source, boxes, dtypes, progress) for boxes in cluster.share(plan)),
        metadata,
        num_parts=len(plan),
        cluster=cluster,
    )


def _dtype(source: ModelDirectory, variable: Variable, dtype: str) -> tf.DType:
    """Returns the requested dtype, or else the tensors' dtype."""
    if dtype:
        return tf.as_dtype(dtype)
    kinds = {source.tensor(each.theirs).opened().dtype for each in variable.read_pieces}
    return tf.as_dtype(kinds.pop()) if len(kinds) == 1 else tf.float32


def _plan(variables: Sequence[Variable]) -> list[list[_Box]]:
    """Divides the variables into parts of about `MOST_ELEMENTS`."""
    plan: list[list[_Box]] = [[]]
    count = 0
    for variable in variables:
        for piece in variable.read_pieces:
            for begin, size in variable.boxes(piece, MOST_ELEMENTS):
                elements = math.prod(size)
                if plan[-1] and count + elements > MOST_ELEMENTS:
                    plan.append([])
                    count = 0
                plan[-1].append(_Box(variable, piece, begin, size))
                count += elements
    return plan


def _part(
    source: ModelDirectory, boxes: Sequence[_Box], dtypes: dict[str, tf.DType], progress: Progress
) -> list[tuple[Slice, tf.Tensor]]:
    """Reads the boxes of a part of the checkpoint."""
    part = []
    for box in boxes:
        each, value = box.read(source, dtypes[box.variable.name])
        part.append((each, tf.constant(value)))
        progress(value.size)
    return part


def _read(
    view: np.ndarray, begin: Sequence[int], size: Sequence[int], dtype: np.dtype
) -> np.ndarray:
    """Reads a box of a view."""
    box = view[tuple(slice(at, at + count) for at, count in zip(begin, size, strict=True))]
    return np.array(np.ascontiguousarray(box).astype(dtype, copy=False))
