"""Moves the values of a checkpoint from and to Hugging Face's files, slice by slice."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from t2tp.checkpoint import Checkpoint, Slice, save_in_parts
from t2tp.checkpoint.reading import DIMENSIONS, MESH_SHAPE, TRAINABLE
from t2tp.checkpoint.variables import slices_as_saved
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_directory import INDEX_FILE, WEIGHTS_FILE, ModelDirectory
from t2tp.huggingface.safetensors_file import DTYPES, TensorInfo, create
from t2tp.huggingface.tensor_map import MOST_ELEMENTS, TensorPiece, Variable

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
    dtypes = {each.name: _dtype(source, each, dtype) for each in variables}
    metadata = {
        DIMENSIONS: {each.name: list(each.dims) for each in variables},
        TRAINABLE: [each.name for each in variables],
        SOURCE: origin or str(source.path),
    }
    parts = (_part(source, boxes, dtypes, progress) for boxes in _plan(variables))
    return save_in_parts(directory, 0, parts, metadata)


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
                _write_overlap(view, piece, part, value)
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
        if each.name not in shapes:
            raise ConversionError(
                f"the checkpoint {saved.path} has no variable {each.name}, which the run's hparams"
                " ask for: convert it with the hparams that it was trained with"
            )
        if shapes[each.name] != each.shape:
            raise ConversionError(
                f"{each.name} has the shape {shapes[each.name]} in the checkpoint {saved.path}, and"
                f" {each.shape} by the run's hparams: convert it with the hparams that it was"
                " trained with"
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
    names = {kind: name for name, kind in DTYPES.items()}
    kinds = {
        piece.theirs: (
            names[np.dtype(((dtype and tf.as_dtype(dtype)) or _kind(saved, each)).as_numpy_dtype)],
            piece.shape,
        )
        for each in variables
        for piece in each.pieces
    }
    files: list[Tensors] = [{}]
    size = 0
    for name, (kind, shape) in kinds.items():
        num_bytes = math.prod(shape) * DTYPES[kind].itemsize
        if files[-1] and size + num_bytes > most_bytes:
            files.append({})
            size = 0
        files[-1][name] = kind, shape
        size += num_bytes
    if len(files) == 1:
        return {WEIGHTS_FILE: files[0]}
    return {
        f"model-{number:05d}-of-{len(files):05d}.safetensors": tensors
        for number, tensors in enumerate(files, start=1)
    }


def _write_index(directory: Path, files: Mapping[str, Tensors]) -> None:
    """Writes the map from each tensor to its file."""
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    sizes = [
        math.prod(shape) * DTYPES[kind].itemsize
        for tensors in files.values()
        for kind, shape in tensors.values()
    ]
    index = {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}
    (directory / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _kind(saved: Checkpoint, variable: Variable) -> tf.DType:
    return saved.dtypes()[variable.name]


def _slices(saved: Checkpoint, variable: Variable) -> Iterator[Slice]:
    """Yields slices to read: the saved slices, or, of an imported checkpoint, boxes."""
    if MESH_SHAPE in saved.metadata:
        yield from slices_as_saved(saved, variable.name)
        return
    for piece in variable.read_pieces:
        for begin, size in variable.boxes(piece, MOST_ELEMENTS):
            yield Slice(variable.name, variable.shape, begin, size, _kind(saved, variable))


def _write_overlap(view: np.ndarray, piece: TensorPiece, part: Slice, value: np.ndarray) -> None:
    """Writes a slice's overlap with a piece of our variable into the piece's view."""
    offsets = (piece.expert or 0, *(0 for _ in part.begin[1:]))
    to, of = [], []
    for begin, size, offset, limit in zip(part.begin, part.size, offsets, view.shape, strict=True):
        first, last = max(begin - offset, 0), min(begin - offset + size, limit)
        if first >= last:
            return
        to.append(slice(first, last))
        of.append(slice(first + offset - begin, last + offset - begin))
    view[tuple(to)] = value[tuple(of)]
