"""Reads slices of any size and position from checkpoints."""

import bisect
import functools
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

from t2tp.checkpoint import errors, files
from t2tp.checkpoint.marker import METADATA, NAME, VARIABLES, Marker, data_file, wrong_content
from t2tp.checkpoint.slices import Slice
from t2tp.object_store import mirror
from t2tp.program.variables import average_of
from t2tp.suggestions import check_known
from t2tp.typed_files import InvalidFileError, Schema, convert, read_bytes, read_json

# TensorFlow's index of a checkpoint is a sorted table (LevelDB's format, uncompressed) from keys to
# descriptions. The key of a tensor is its name. The key of a saved slice is the name, a terminator,
# and the slice's begins and sizes, encoded such that the keys are sorted by begin and size.
Table = list[tuple[bytes, bytes]]
_FOOTER_BYTES = 48
# Max bytes of an index and of a key, and bits of a number; the first dtype of references.
_MAX_INDEX, _MAX_KEY, _MAX_BITS, _REFERENCES = 256 << 20, 1 << 13, 63, 100


def data_ranges(table: Table, slices: Sequence[Slice]) -> dict[int, list[tuple[int, int]]]:
    """Finds the byte ranges of the saved slices that overlap with given slices.

    Returns:
      Number of the data file -> ranges (begin, end) in it, ascending. Adjacent ranges are joined.
    """
    keys = [key for key, _ in table]
    found: set[tuple[int, int, int]] = set()
    for each in slices:
        name = each.name.encode()
        tensor = BundleEntryProto.FromString(table[bisect.bisect_left(keys, name)][1])
        regions = sorted(
            [(e.start, e.length if e.HasField("length") else -1) for e in region.extent]
            for region in tensor.slices
        )
        first = bisect.bisect_left(keys, b"\0" + name + b"\0\1")
        saved = [BundleEntryProto.FromString(v) for _, v in table[first : first + len(regions)]]
        whole = [[(0, -1)] * len(each.shape)]
        for region, entry in zip(regions or whole, saved or [tensor], strict=True):
            dims = zip(region, each.begin, each.size, strict=True)
            if all(b < at + n and (size < 0 or at < b + size) for (b, size), at, n in dims):
                found.add((entry.shard_id, entry.offset, entry.offset + entry.size))
    ranges: dict[int, list[tuple[int, int]]] = {}
    for shard, begin, end in sorted(found):
        joined = ranges.setdefault(shard, [])
        if joined and joined[-1][1] == begin:
            begin = joined.pop()[0]
        joined.append((begin, end))
    return ranges


def read_index(path: Path) -> Table:
    """Reads the keys and values of an index, ascending by key.

    Raises:
      InvalidFileError: the file is no such table.
    """
    content = read_bytes(path, _MAX_INDEX)
    try:
        _, _, begin, size = _varints(content, len(content) - _FOOTER_BYTES, 4)[0]
        handles = [_varints(handle, 0, 2)[0] for _, handle in _block(content, begin, size)]
        if sum(size for _, size in handles) > len(content):
            raise ValueError("blocks overlap")
        return [item for begin, size in handles for item in _block(content, begin, size)]
    except (IndexError, ValueError) as error:
        raise InvalidFileError(f"{path.name} is no index: {error}") from error


def tensors_in(table: Table, data_bytes: int) -> dict[str, tuple[tuple[int, ...], tf.DType]]:
    """Returns the shape and dtype of each tensor in an index, by name.

    TensorFlow's own reader ends the process when an index has an impossible entry.

    Raises:
      InvalidFileError: an entry is impossible, or is of more than the data files' `data_bytes`.
    """
    found = {}
    for key, value in table:
        if not key or key.startswith(b"\0"):  # The header, or a slice.
            continue
        try:
            entry = BundleEntryProto.FromString(value)
            shape = tuple(dim.size for dim in entry.shape.dim)
            dtype = tf.dtypes.as_dtype(entry.dtype)
            is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex
            is_number &= entry.dtype < _REFERENCES and min(shape, default=0) >= 0
            if not is_number or math.prod(shape) * dtype.size > data_bytes:
                raise ValueError(f"{dtype.name} {list(shape)[:9]}")
            for part in entry.slices:
                for extent, size in zip(part.extent, shape, strict=True):
                    if not 0 <= extent.start <= extent.start + extent.length <= size:
                        raise ValueError("a slice is outside")
            found[key.decode()] = shape, dtype
        except (DecodeError, TypeError, ValueError) as error:
            raise InvalidFileError(f"the index has an impossible entry {key!r}: {error}") from error
    return found


def _block(content: bytes, begin: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields a block's keys and values.

    A key is stored without the prefix that it shares with the previous key.
    """
    if content[begin + size]:
        raise ValueError("a block is compressed")
    restarts = int.from_bytes(content[begin + size - 4 : begin + size], "little")
    at, end, key = begin, begin + size - 4 * (restarts + 1), b""
    while at < end:
        (shared, rest, length), at = _varints(content, at, 3)
        key = key[:shared] + content[at : at + rest]
        if len(key) > _MAX_KEY:
            raise ValueError("a key is too long")
        yield key, content[at + rest : at + rest + length]
        at += rest + length


def _varints(content: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Decodes `count` varints: each byte has seven bits of the number, the lowest bits first.

    Returns the numbers, and the position after them.
    """
    numbers = []
    for _ in range(count):
        number = shift = 0
        while True:
            number |= (content[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if shift > _MAX_BITS:
                raise ValueError("a number is too long")
            if content[at - 1] < 0x80:
                break
        numbers.append(number)
    return numbers, at


_PREFIX = b"/" + VARIABLES.encode()

# Keys of the metadata: the variables and their layout, the checkpoint with the frozen weights, the
# steps of averaged checkpoints, and (step, batch size from that step on).
DIMENSIONS, TRAINABLE, MESH_SHAPE, LAYOUT = "dimensions", "trainable", "mesh_shape", "layout"
BASE, AVERAGED, BATCH_SIZES = "base", "averaged", "batch_sizes"


@dataclass(frozen=True)
class BaseReference:
    """The metadata of `BASE`; see `frozen_base.py`."""

    path: str
    save_id: str
    names: dict[str, str]


_METADATA: Schema = {
    DIMENSIONS: dict[str, list[str]],
    TRAINABLE: list[str],
    MESH_SHAPE: str,
    LAYOUT: str,
    BASE: BaseReference,
    AVERAGED: list[int],
    BATCH_SIZES: list[tuple[int, int]],
    "random_seed": int,
    "source": str,  # See `t2tp.huggingface.moving`.
}

# TensorFlow's errors about data files that contradict the index.
_WRONG_DATA = (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.NotFoundError)


class Checkpoint:
    """A finished checkpoint.

    Attributes:
      path: its directory.
      step: the training step.
      saved_at: time of the save, in seconds since 1970.
      metadata: plain JSON saved with the tensors.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Opens a checkpoint; checks its files as `Marker.check_files` does.

        Raises:
          DamagedCheckpointError: `path` is not a checkpoint, is unfinished, or is damaged.
          UnusableCheckpointError: the checkpoint cannot be read.
          NewerFormatError: the checkpoint has a newer format.
        """
        self.path = Path(path)
        self._marker = Marker.read(self.path)
        self._marker.check_files(self.path)
        self.step = self._marker.step
        self.saved_at = self._marker.saved_at
        with errors.as_unusable(errors.checkpoint_in(self.path)):
            metadata = read_json(self.path / METADATA, dict[str, Any])
            convert(metadata, _METADATA, METADATA)
            self.metadata = {name: value for name, value in metadata.items() if value is not None}
            data_bytes = sum(file.size for file in self._marker.files.values() if not file.sha256)
            tensors = tensors_in(self._index, data_bytes)
            self._shapes = {name: shape for name, (shape, _) in tensors.items()}
            self._dtypes = {name: dtype for name, (_, dtype) in tensors.items()}
            self._dtypes.update(dict.fromkeys(self._marker.float16, tf.float16))
            self._check_metadata()

    def _check_metadata(self) -> None:
        """Raises InvalidFileError if the metadata describe other variables."""
        for name in {*self.metadata.get(TRAINABLE, ()), *self._marker.float16} - {*self._shapes}:
            raise InvalidFileError(f"{METADATA} or {NAME} names {name!r}, which is no variable")
        for name, dimensions in self.metadata.get(DIMENSIONS, {}).items():
            shape = self._shapes.get(name)
            if shape is not None and len(dimensions) != len(shape):
                raise InvalidFileError(f"{METADATA}: {DIMENSIONS}.{name} is of no shape {shape}")

    @property
    def save_id(self) -> str:
        """The id of the save. Copies of a checkpoint have the same id, other saves do not."""
        return "-".join(self._marker.writers)

    @property
    def prefix(self) -> str:
        """The path to pass to TensorFlow's functions, such as `tf.train.load_checkpoint`."""
        return str(self.path / VARIABLES)

    def stored_name(self, name: str) -> str:
        """Returns the name of the tensor that is read as the variable `name`; see `RunWeights`."""
        return name

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the global shape of each tensor, by name."""
        return dict(self._shapes)

    def dtypes(self) -> dict[str, tf.DType]:
        """Returns the dtype of each tensor, by name."""
        return dict(self._dtypes)

    def read(self, slices: Sequence[Slice]) -> list[tf.Tensor]:
        """Reads slices of any size and position.

        TensorFlow reads and checks whole saved slices, even if only a part is requested.

        Returns:
          The values on the CPU, in the order of `slices`.

        Raises:
          LookupError: the checkpoint has no tensor of that name.
          ValueError: a slice's shape or dtype is not the tensor's.
          DamagedCheckpointError: the stored content has changed.
          UnusableCheckpointError: the content cannot be read.
        """
        for each in slices:
            self._check_slice(each)
        if not slices:
            return []
        stored = [tf.float32 if part.dtype == tf.float16 else part.dtype for part in slices]
        with (
            errors.as_unusable(errors.checkpoint_in(self.path)),
            files.tensorflow_path(self.path) as location,
            tf.device("CPU:0"),
        ):
            restore = functools.partial(
                tf.raw_ops.RestoreV2,
                prefix=location + _PREFIX,
                tensor_names=[each.name for each in slices],
                shape_and_slices=[each.spec for each in slices],
                dtypes=stored,
            )
            try:
                self._fetch(slices)
                values = restore()
            except _WRONG_DATA:
                self._marker.check_files(self.path)  # A file may be missing, or too short.
                self._fetch(slices, again=True)
                try:
                    values = restore()  # A wrong checksum may be a transient read error.
                except tf.errors.DataLossError as error:
                    raise wrong_content(self.path, self._data_file(error)) from error
            return [
                tf.cast(value, each.dtype) if each.dtype == tf.float16 else value
                for value, each in zip(values, slices, strict=True)
            ]

    def _fetch(self, slices: Sequence[Slice], again: bool = False) -> None:
        """Downloads the slices from the object store, if the checkpoint is there."""
        if mirror.mirror_of(self.path) is None:
            return
        for number, ranges in data_ranges(self._index, slices).items():
            path = self.path / data_file(number, self._num_data_files)
            mirror.fill(path, ranges, again=again)

    @functools.cached_property
    def _index(self) -> Table:
        return read_index(self.path / f"{VARIABLES}.index")

    @property
    def _num_data_files(self) -> int:
        return sum(not record.sha256 for record in self._marker.files.values())

    def verify(self) -> None:
        """Checks all files, and the checksums of all slices by reading each tensor.

        Raises:
          DamagedCheckpointError: a file has changed; the error names it.
          UnusableCheckpointError: a file cannot be read.
        """
        self._marker.check_files(self.path)
        for name, shape in self._shapes.items():
            self.read([Slice.full(name, shape, self._dtypes[name])])

    def _data_file(self, error: tf.errors.DataLossError) -> str:
        """Names the data file with the wrong checksum; if unknown, the prefix of all data files."""
        shard = re.search(r"\bshard (\d+)", error.message)
        return data_file(int(shard[1]), self._num_data_files) if shard else VARIABLES

    def _check_slice(self, part: Slice) -> None:
        sentence = f"The checkpoint {self.path} has no {part.name!r}"
        check_known(part.name, self._shapes, "tensors", sentence, LookupError)
        shape, dtype = self._shapes[part.name], self._dtypes[part.name]
        if (shape, dtype) != (part.shape, part.dtype):
            raise ValueError(
                f"{part.name!r} is {dtype.name} {shape} in the checkpoint {self.path} and is asked"
                f" for as {part.dtype.name} {part.shape}."
            )


class RunWeights(Checkpoint):
    """A checkpoint, read as if each variable with a moving average had the average's value.

    Evaluation and decoding build programs that read the averages (`t2tp.optim.ema`). Whatever takes
    weights out of a checkpoint instead reads it through this class, and so gets the same weights.
    """

    def stored_name(self, name: str) -> str:
        """Returns the name of the tensor that is read as the variable `name`."""
        average = average_of(name)
        return average if average in self.shapes() else name

    def dtypes(self) -> dict[str, tf.DType]:
        """Returns the dtype of each tensor, by name."""
        stored = super().dtypes()
        return {name: stored[self.stored_name(name)] for name in stored}

    def read(self, slices: Sequence[Slice]) -> list[tf.Tensor]:
        """Reads slices; arguments and errors as for `Checkpoint.read`."""
        return super().read([replace(each, name=self.stored_name(each.name)) for each in slices])


def latest(directory: str | PathLike[str], before: int | None = None) -> Checkpoint | None:
    """Opens the latest finished checkpoint of a directory; None if there is none.

    Unfinished and damaged checkpoints are skipped with a warning. `before` is an exclusive upper
    bound of the step.

    Raises:
      NewerFormatError: the latest checkpoint has a newer format; older checkpoints are not tried.
      UnusableCheckpointError: the directory or the latest checkpoint cannot be read. The checkpoint
        is not skipped, because it may be intact.
    """
    directory = Path(directory)
    unfinished = files.temporary_directories(directory) if before is None else {}
    for step, path in reversed(files.step_directories(directory).items()):
        opened = _open_or_warn(path) if before is None or step < before else None
        if opened is not None:
            break
    else:
        opened = None
    for step, path in unfinished.items():
        if opened is None or step > opened.step:
            logging.warning("Skipping %s: it was not finished, or is still being written.", path)
    return opened


class CheckpointPath(NamedTuple):
    """Path and training step of a finished checkpoint."""

    path: Path
    step: int


def last_finished(directory: str | PathLike[str]) -> CheckpointPath | None:
    """Finds the latest finished and undamaged checkpoint without opening it; None if there is none.

    If this checkpoint has a newer format or an unreadable file, `latest` raises an error, but this
    function returns the path. It does not use TensorFlow, and logs no warnings.
    """
    for step, path in reversed(files.step_directories(Path(directory)).items()):
        try:
            finished_step = Marker.finished_step(path)
        except errors.UnusableCheckpointError:
            finished_step = step
        if finished_step == step:
            return CheckpointPath(path, step)
    return None


def all_steps(directory: str | PathLike[str]) -> list[int]:
    """Returns the steps of a directory's finished checkpoints, ascending.

    Damaged or unreadable checkpoints, and newer formats, are skipped with a warning.
    """
    steps = []
    for path in files.step_directories(Path(directory)).values():
        try:
            opened = _open_or_warn(path)
        except errors.UnusableCheckpointError as error:
            logging.warning("Skipping a checkpoint: %s", error)
            continue
        if opened is not None:
            steps.append(opened.step)
    return steps


def _open_or_warn(path: Path) -> Checkpoint | None:
    try:
        checkpoint = Checkpoint(path)
    except errors.DamagedCheckpointError as error:
        if os.path.lexists(path):  # Retention may have deleted it meanwhile.
            logging.warning("Skipping a checkpoint: %s", error)
        return None
    if files.step_directory(path.parent, checkpoint.step) != path:
        logging.warning("Skipping %s: it holds step %d, unlike its name.", path, checkpoint.step)
        return None
    return checkpoint
