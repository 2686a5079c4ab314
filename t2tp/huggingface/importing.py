"""Writes a checkpoint of the tensors of a source, a slice of a tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from t2tp import checkpoint
from t2tp.checkpoint import Slice
from t2tp.checkpoint.variables import DIMENSIONS, TRAINABLE
from t2tp.huggingface.model_directory import ModelDirectory
from t2tp.huggingface.tensor_map import Variable

# Elements of a slice; 32 MB in float32.
MOST_ELEMENTS = 1 << 23

Progress = Callable[[int], object]


def import_tensors(
    source: ModelDirectory,
    variables: Sequence[Variable],
    directory: Path,
    dtype: str = "",
    progress: Progress = lambda count: None,
) -> Path:
    """Writes the checkpoint of step 0.

    Args:
      source: its tensors are read.
      variables: of the model; see `ModelDirectory.check_fits`.
      directory: of the checkpoints.
      dtype: of the values in the checkpoint; "": that of each tensor in the directory.
      progress: called again and again, with the number of values that were read.

    Returns:
      The directory of the checkpoint.

    Raises:
      ConversionError: a tensor has a dtype that no weight has.
      OSError: a file cannot be read or written.
    """
    dtypes = {each.name: _dtype(source, each, dtype) for each in variables}
    metadata = {
        DIMENSIONS: {each.name: list(each.dims) for each in variables},
        TRAINABLE: [each.name for each in variables],
    }
    parts = _parts(source, variables, dtypes, progress)
    return checkpoint.save_in_parts(directory, 0, parts, metadata)


def _dtype(source: ModelDirectory, variable: Variable, dtype: str) -> tf.DType:
    """Returns the dtype of a variable: the one asked for, or that of its tensors."""
    if dtype:
        return tf.as_dtype(dtype)
    kinds = {source.tensor(each.theirs).opened().dtype for each in variable.pieces}
    return tf.as_dtype(kinds.pop()) if len(kinds) == 1 else tf.float32


def _parts(
    source: ModelDirectory,
    variables: Sequence[Variable],
    dtypes: dict[str, tf.DType],
    progress: Progress,
) -> Iterator[list[tuple[Slice, tf.Tensor]]]:
    """Yields slices of about `MOST_ELEMENTS` together."""
    part: list[tuple[Slice, tf.Tensor]] = []
    size = 0
    for variable in variables:
        for each, value in _slices(source, variable, dtypes[variable.name], progress):
            if size + value.size > MOST_ELEMENTS and part:
                yield part
                part, size = [], 0
            part.append((each, tf.constant(value)))
            size += value.size
    if part:
        yield part


def _slices(
    source: ModelDirectory, variable: Variable, dtype: tf.DType, progress: Progress
) -> Iterator[tuple[Slice, np.ndarray]]:
    for piece in variable.pieces:
        tensor = source.tensor(piece.theirs).opened()
        view = piece.view(tensor)
        first = () if piece.expert is None else (0,)
        for begin, size in variable.boxes(piece, MOST_ELEMENTS):
            value = _read(view, (*first, *begin[len(first) :]), size, dtype.as_numpy_dtype)
            yield Slice(variable.name, variable.shape, begin, size, dtype), value
            progress(value.size)


def _read(
    view: np.ndarray, begin: Sequence[int], size: Sequence[int], dtype: np.dtype
) -> np.ndarray:
    """Reads a box of a view; what is beyond the view is 0."""
    found = view[tuple(slice(at, at + count) for at, count in zip(begin, size, strict=True))]
    beyond = [(0, count - there) for count, there in zip(size, found.shape, strict=True)]
    value = np.ascontiguousarray(found).astype(dtype, copy=False)
    return np.pad(value, beyond) if any(after for _, after in beyond) else np.array(value)
