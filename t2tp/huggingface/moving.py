"""Moves the values of a checkpoint from and to Hugging Face's files, slice by slice."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import tensorflow as tf

from t2tp.checkpoint import Checkpoint, Slice, save
from t2tp.checkpoint.reading import DIMENSIONS, MESH_SHAPE, TRAINABLE
from t2tp.checkpoint.variables import slices_as_saved
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_directory import INDEX_FILE, WEIGHTS_FILE, ModelDirectory
from t2tp.huggingface.safetensors_file import DTYPE_NAMES, DTYPES, TensorInfo, create
from t2tp.huggingface.tensor_map import MOST_ELEMENTS, TensorPiece, Variable

Progress = Callable[[int], object]
_Region = tuple[slice, ...]
_T = TypeVar("_T")

# Metadata key: the Hugging Face model that a checkpoint was imported from.
SOURCE = "source"


# How many values of a large tensor `DirectoryCheckpoint.save_id` hashes, or up to twice as many.
_SAMPLE = 64


class DirectoryCheckpoint(Checkpoint):
    """A Hugging Face directory, read as the checkpoint that `import_tensors` would write.

    `path` is the directory, and the metadata are empty. Only the requested slices are read.
    """

    def __init__(
        self, source: ModelDirectory, variables: Sequence[Variable], dtype: str = ""
    ) -> None:
        """Reads no values. The dtype "" keeps each tensor's dtype.

        Raises:
          ConversionError: the dtype of a tensor is not supported.
        """
        self.path, self.step, self.saved_at, self.metadata = source.path, 0, 0.0, {}
        self._source = source
        self._variables = {each.name: each for each in variables}
        self._shapes = {each.name: each.shape for each in variables}
        self._dtypes = {each.name: _dtype(source, each, dtype) for each in variables}

    @property
    def save_id(self) -> str:
        """A hash of the tensors' names, shapes and a few values. Copies have the same hash."""
        digest = hashlib.sha256()
        for variable in self._variables.values():
            for piece in variable.read_pieces:
                values = self._source.tensor(piece.theirs).opened()
                digest.update(f"{piece.theirs} {values.dtype} {values.shape}".encode())
                digest.update(values.reshape(-1)[:: max(1, values.size // _SAMPLE)].tobytes())
        return digest.hexdigest()

    def read(self, slices: Sequence[Slice]) -> list[tf.Tensor]:
        """Reads slices of any size and position; returns the values on the CPU.

        Raises:
          LookupError: the model has no variable of that name.
          ValueError: a slice's shape or dtype is not the variable's.
        """
        for each in slices:
            self._check_slice(each)
        with tf.device("CPU:0"):
            return [tf.constant(self._value(each)) for each in slices]

    def _value(self, part: Slice) -> np.ndarray:
        value = np.empty(part.size, part.dtype.as_numpy_dtype)
        for piece in self._variables[part.name].read_pieces:
            overlap = _overlap(piece, part)
            if overlap is not None:
                view = piece.view(self._source.tensor(piece.theirs).opened())
                value[overlap[1]] = view[overlap[0]]
        return value


def import_tensors(
    source: ModelDirectory,
    variables: Sequence[Variable],
    directory: Path,
    dtype: str = "",
    progress: Progress = lambda count: None,
    origin: str = "",
) -> Path:
    """Writes the checkpoint of step 0 in `directory`, and returns the checkpoint's directory.

    The dtype "" keeps each tensor's dtype. `progress` is called with the number of values read
    since the last call. `origin` is the model's name on the Hub; by default the path of `source` is
    recorded as the origin.

    Raises:
      ConversionError: the dtype of a tensor is not supported.
      OSError: a file cannot be read or written.
    """
    saved = DirectoryCheckpoint(source, variables, dtype)
    metadata = {
        DIMENSIONS: {each.name: list(each.dims) for each in variables},
        TRAINABLE: [each.name for each in variables],
        SOURCE: origin or str(source.path),
    }

    def read(slices: Sequence[Slice]) -> list[tuple[Slice, tf.Tensor]]:
        values = saved.read(slices)
        progress(sum(math.prod(each.size) for each in slices))
        return list(zip(slices, values, strict=True))

    slices = itertools.chain.from_iterable(_slices(saved, each) for each in variables)
    parts = _groups(slices, lambda each: math.prod(each.size), MOST_ELEMENTS)
    return save(directory, 0, map(read, parts), metadata)


def _dtype(source: ModelDirectory, variable: Variable, dtype: str) -> tf.DType:
    """Returns the requested dtype, or else the tensors' dtype."""
    if dtype:
        return tf.as_dtype(dtype)
    kinds = {source.tensor(each.theirs).opened().dtype for each in variable.read_pieces}
    return tf.as_dtype(kinds.pop()) if len(kinds) == 1 else tf.float32


def _groups(items: Iterable[_T], size_of: Callable[[_T], int], most: int) -> list[list[_T]]:
    """Divides items, in their order, into groups of a total size of at most `most`, if possible."""
    groups: list[list[_T]] = [[]]
    total = 0
    for item in items:
        size = size_of(item)
        if groups[-1] and total + size > most:
            groups.append([])
            total = 0
        groups[-1].append(item)
        total += size
    return groups


# Size limit of a file in bytes, as in `transformers`.
MOST_BYTES = 5_000_000_000

# dtype and shape of tensors, by name.
Tensors = dict[str, tuple[str, tuple[int, ...]]]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMG])(I?)B)?", re.IGNORECASE)


def bytes_of(size: str) -> int:
    """Parses a size such as 500MB or 5GB, as `save_pretrained` of `transformers` accepts it.

    Raises:
      ConversionError: the text is not such a size.
    """
    parts = _SIZE.fullmatch(size.strip())
    if parts is None or not float(parts[1]):
        raise ConversionError(
            f"{size!r} is no size of a file: give a number of bytes, KB, MB or GB: 5GB"
        )
    power = "KMG".index(parts[2].upper()) + 1 if parts[2] else 0
    return int(float(parts[1]) * (1024 if parts[3] else 1000) ** power)


def export_tensors(
    saved: Checkpoint,
    variables: Sequence[Variable],
    directory: Path,
    dtype: str = "",
    progress: Progress = lambda count: None,
    most_bytes: int = MOST_BYTES,
) -> None:
    """Writes the files of tensors, and their index if there are several.

    The dtype "" keeps each variable's dtype. `progress` is called with the number of values written
    since the last call. A tensor larger than `most_bytes` gets its own file.

    Raises:
      OSError: a file cannot be read or written.
    """
    files = _files(saved, variables, dtype, most_bytes)
    if len(files) > 1:
        _write_index(directory, files)
    places: dict[str, TensorInfo] = {}
    for name, tensors in files.items():
        places |= create(directory / name, tensors)
    for variable in variables:
        views = [(each, each.view(places[each.theirs].opened("r+"))) for each in variable.pieces]
        for part in _slices(saved, variable):
            value = saved.read([part])[0].numpy()
            for piece, view in views:
                overlap = _overlap(piece, part)
                if overlap is not None:
                    view[overlap[0]] = value[overlap[1]]
            progress(value.size)
        del views  # A mapped file is written when its last view is deleted.


def check_fits(saved: Checkpoint, variables: Sequence[Variable]) -> None:
    """Checks that a checkpoint has the variables, and no other trainable variables.

    Raises:
      ConversionError: one of `variables` is missing or has another shape, or the checkpoint has a
        further trainable variable.
    """
    shapes = saved.shapes()
    for each in variables:
        if shapes.get(each.name) != each.shape:
            raise ConversionError(
                f"{each.name} has the shape {each.shape} by the run's hparams, and"
                f" {shapes.get(each.name, 'is missing')} in the checkpoint {saved.path}: convert it"
                " with the hparams that it was trained with"
            )
    known = {each.name for each in variables}
    beyond = [name for name in saved.metadata.get(TRAINABLE, []) if name not in known]
    if beyond:
        raise ConversionError(
            f"the checkpoint {saved.path} has a variable {beyond[0]}, and models of this type have"
            " no tensor for it"
        )


def _files(
    saved: Checkpoint, variables: Sequence[Variable], dtype: str, most_bytes: int
) -> dict[str, Tensors]:
    """Distributes the tensors over files; returns their dtypes and shapes, by file and name."""
    dtypes = saved.dtypes()
    kinds: Tensors = {}
    for each in variables:
        kind = DTYPE_NAMES[np.dtype(tf.as_dtype(dtype or dtypes[each.name]).as_numpy_dtype)]
        kinds |= {piece.theirs: (kind, piece.shape) for piece in each.pieces}
    groups = _groups(kinds.items(), lambda item: _bytes(*item[1]), most_bytes)
    files = [dict(group) for group in groups]
    if len(files) == 1:
        return {WEIGHTS_FILE: files[0]}
    return {
        f"model-{number:05d}-of-{len(files):05d}.safetensors": tensors
        for number, tensors in enumerate(files, start=1)
    }


def _bytes(kind: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * DTYPES[kind].itemsize


def _write_index(directory: Path, files: Mapping[str, Tensors]) -> None:
    """Writes the map from each tensor to its file."""
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    total = sum(_bytes(*each) for tensors in files.values() for each in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _slices(saved: Checkpoint, variable: Variable) -> Iterator[Slice]:
    """Yields slices to read: the saved slices, or, of an imported checkpoint, boxes."""
    if MESH_SHAPE in saved.metadata:
        yield from slices_as_saved(saved, variable.name)
        return
    dtype = saved.dtypes()[variable.name]
    for piece in variable.read_pieces:
        for begin, size in variable.boxes(piece, MOST_ELEMENTS):
            yield Slice(variable.name, variable.shape, begin, size, dtype)


def _overlap(piece: TensorPiece, part: Slice) -> tuple[_Region, _Region] | None:
    """Returns the overlap of a slice and a piece, as regions of the piece's view and of the slice.

    Returns None if they do not overlap.
    """
    offsets = (piece.expert or 0, *(0 for _ in part.begin[1:]))
    limits = part.shape if piece.expert is None else (1, *part.shape[1:])
    of_view, of_slice = [], []
    for begin, size, offset, limit in zip(part.begin, part.size, offsets, limits, strict=True):
        first, last = max(begin - offset, 0), min(begin - offset + size, limit)
        if first >= last:
            return None
        of_view.append(slice(first, last))
        of_slice.append(slice(first + offset - begin, last + offset - begin))
    return tuple(of_view), tuple(of_slice)
