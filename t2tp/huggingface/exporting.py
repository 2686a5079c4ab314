"""Exports a checkpoint to Hugging Face's files slice by slice."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from t2tp.checkpoint import Checkpoint, Slice
from t2tp.checkpoint.reading import MESH_SHAPE, TRAINABLE
from t2tp.checkpoint.variables import slices_as_saved
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.importing import Progress
from t2tp.huggingface.model_directory import INDEX_FILE, WEIGHTS_FILE
from t2tp.huggingface.safetensors_file import DTYPES, TensorInfo, create
from t2tp.huggingface.tensor_map import MOST_ELEMENTS, TensorPiece, Variable
from t2tp.processes.cluster import ALONE, Cluster

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
    cluster: Cluster = ALONE,
) -> None:
    """Writes the files of tensors, and their index if there are several.

    The dtype "" keeps each variable's dtype. `progress` is called with the number of values written
    since the last call. A tensor larger than `most_bytes` gets its own file. Each process of
    `cluster` writes whole files, because two processes that write into the same file on a file
    server might lose values.

    Raises:
      OSError: a file cannot be read or written.
    """
    files = _files(saved, variables, dtype, most_bytes)
    if cluster.is_main_process and len(files) > 1:
        _write_index(directory, files)
    places: dict[str, TensorInfo] = {}
    for name, tensors in cluster.share([*files.items()]):
        places |= create(directory / name, tensors)
    for variable in variables:
        pieces = [each for each in variable.pieces if each.theirs in places]
        if not pieces:
            continue
        views = [(each, each.view(places[each.theirs].opened("r+"))) for each in pieces]
        for part in _slices(saved, variable):
            value = saved.read([part])[0].numpy()
            for piece, view in views:
                _write(view, piece, part, value)
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


def _write(view: np.ndarray, piece: TensorPiece, part: Slice, value: np.ndarray) -> None:
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
