"""Reads checkpoints: any slice, whatever the slices it was saved in."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf
from absl import logging

from t2tp.checkpoint import files
from t2tp.checkpoint.errors import (
    NewerFormatError,
    UnusableCheckpointError,
    as_unusable,
    checkpoint_in,
)
from t2tp.checkpoint.marker import METADATA, VARIABLES, Marker
from t2tp.checkpoint.slices import Slice
from t2tp.nearest import nearest


class Checkpoint:
    """A finished checkpoint.

    Attributes:
      path: its folder.
      step: the training step that was saved.
      saved_at: when, in seconds since 1970; None if that is not known.
      metadata: what was saved along with the tensors.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Opens a checkpoint; checks the sizes of its files, and the small ones' content.

        Raises:
          UnusableCheckpointError: `path` is no checkpoint, not finished, damaged, or cannot be
            read.
          NewerFormatError: it is of a newer format.
        """
        self.path = Path(path)
        self._marker = Marker.read(self.path)
        self._marker.check_sizes(self.path)
        self.step = self._marker.step
        self.saved_at = self._marker.saved_at
        with as_unusable(checkpoint_in(self.path)):
            self.metadata: dict = json.loads((self.path / METADATA).read_bytes())
            reader = tf.compat.v1.train.NewCheckpointReader(self.prefix)
        self._shapes = {
            name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()
        }
        self._dtypes = dict(reader.get_variable_to_dtype_map())
        self._dtypes.update(dict.fromkeys(self._marker.float16, tf.float16))

    @property
    def save_id(self) -> str:
        """Tells this checkpoint, and copies of it, from all others, also from those of its step."""
        return "-".join(self._marker.writers)

    @property
    def prefix(self) -> str:
        """What TensorFlow's own functions (`tf.train.load_checkpoint`) call the checkpoint."""
        return str(self.path / VARIABLES)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The global shape of each tensor, by name."""
        return dict(self._shapes)

    def dtypes(self) -> dict[str, tf.DType]:
        """The dtype of each tensor, by name."""
        return dict(self._dtypes)

    def read(self, slices: Sequence[Slice]) -> list[tf.Tensor]:
        """Reads slices of any size and place.

        TensorFlow reads and checks those saved slices, as wholes, that a slice touches.

        Returns:
          Their values on the CPU, in the order of `slices`.

        Raises:
          LookupError: the checkpoint has no tensor of that name.
          ValueError: a tensor has another shape or dtype than the slice says.
          UnusableCheckpointError: what is stored is not what was saved, or cannot be read.
        """
        for each in slices:
            self._check(each)
        if not slices:
            return []
        stored = [tf.float32 if part.dtype == tf.float16 else part.dtype for part in slices]
        with as_unusable(checkpoint_in(self.path)), tf.device("CPU:0"):
            values = tf.raw_ops.RestoreV2(
                prefix=self.prefix,
                tensor_names=[each.name for each in slices],
                shape_and_slices=[each.spec for each in slices],
                dtypes=stored,
            )
            return [
                tf.cast(value, each.dtype) if each.dtype == tf.float16 else value
                for value, each in zip(values, slices, strict=True)
            ]

    def verify(self) -> None:
        """Reads all files and compares them with what was written.

        Raises:
          UnusableCheckpointError: a file is not what was written, or cannot be read; the error
            names it.
        """
        self._marker.check_contents(self.path)

    def _check(self, part: Slice) -> None:
        if part.name not in self._shapes:
            raise LookupError(
                f"The checkpoint {self.path} has no {part.name!r}:"
                f" {nearest(part.name, self._shapes, 'tensors')}"
            )
        shape, dtype = self._shapes[part.name], self._dtypes[part.name]
        if (shape, dtype) != (part.shape, part.dtype):
            raise ValueError(
                f"{part.name!r} is {dtype.name} {shape} in the checkpoint {self.path} and is asked"
                f" for as {part.dtype.name} {part.shape}."
            )


def latest(directory: str | PathLike[str], before: int | None = None) -> Checkpoint | None:
    """Opens the newest finished checkpoint of a directory; None if there is none.

    One that is unfinished or damaged is skipped with a warning that names it and says why.

    Args:
      directory: holds the run's checkpoints.
      before: only those of smaller steps are looked at.

    Raises:
      NewerFormatError: the newest is of a newer format; those before it are not what is meant.
      UnusableCheckpointError: the directory cannot be read.
    """
    directory = Path(directory)
    unfinished = files.temporary_folders(directory) if before is None else {}
    for step, path in reversed(files.step_folders(directory).items()):
        found = _open_or_warn(path) if before is None or step < before else None
        if found is not None:
            break
    else:
        found = None
    for step, path in unfinished.items():
        if found is None or step > found.step:
            logging.warning("Skipping %s: it was not finished, or is still being written.", path)
    return found


class Finished(NamedTuple):
    """Where a finished checkpoint is, and the training step that was saved."""

    path: Path
    step: int


def last_finished(directory: str | PathLike[str]) -> Finished | None:
    """Finds the newest finished checkpoint of a directory; None if there is none.

    It is the one that `latest` opens, found without TensorFlow, and without a warning; also if it
    is of a newer format.
    """
    for step, path in reversed(files.step_folders(Path(directory)).items()):
        try:
            marker = Marker.read(path)
            marker.check_sizes(path)
        except NewerFormatError:
            return Finished(path, step)
        except UnusableCheckpointError:
            continue
        if marker.step == step:
            return Finished(path, step)
    return None


def all_steps(directory: str | PathLike[str]) -> list[int]:
    """The steps of a directory's finished checkpoints, ascending.

    It warns of those that are damaged or of a newer format, and leaves them out.
    """
    steps = []
    for path in files.step_folders(Path(directory)).values():
        try:
            found = _open_or_warn(path)
        except NewerFormatError as error:
            logging.warning("Skipping a checkpoint: %s", error)
            continue
        if found is not None:
            steps.append(found.step)
    return steps


def _open_or_warn(path: Path) -> Checkpoint | None:
    try:
        checkpoint = Checkpoint(path)
    except NewerFormatError:
        raise
    except UnusableCheckpointError as error:
        if os.path.lexists(path):  # It may just have been deleted as one too many.
            logging.warning("Skipping a checkpoint: %s", error)
        return None
    if files.step_folder(path.parent, checkpoint.step) != path:
        logging.warning("Skipping %s: it holds step %d, not its name's.", path, checkpoint.step)
        return None
    return checkpoint
