"""Saves a checkpoint: every process its own slices, and nothing unfinished under a final name.

The files are written into `step-00000300.tmp`; when all of them are on the disk, the `FINISHED`
marker is written, and only then the folder is renamed to `step-00000300`. A crash before the
renaming leaves a `.tmp` folder, which nobody takes for a checkpoint and the next save of the step
or `t2tp.checkpoint.keep` deletes.

TensorFlow saves slices of float16 tensors but cannot restore them ("Dtype half not supported"),
so these are stored as float32, which holds every float16 value exactly; the marker remembers which.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import tensorflow as tf
from absl import logging

from t2tp.checkpoint import files
from t2tp.checkpoint.errors import NewerFormatError, UnusableCheckpointError, reason
from t2tp.checkpoint.marker import METADATA, VARIABLES, FileRecord, Marker
from t2tp.checkpoint.metrics import record_metrics
from t2tp.checkpoint.slices import Slice, check_tiling

# The dtypes whose slices TensorFlow restores, and float16, which we store as float32.
_DTYPES = (
    *(tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64),
    *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.bool),
)


def save(
    directory: str | PathLike[str],
    step: int,
    values: Sequence[tuple[Slice, tf.Tensor]],
    metadata: dict,
    *,
    metrics: Mapping[str, float] | None = None,
    process_id: int = 0,
    num_processes: int = 1,
    barrier: Callable[[str], None] | None = None,
) -> Path:
    """Saves the checkpoint of a step as `<directory>/step-<step>`.

    With several processes each calls this at the same step with the slices it owns, on a file
    system that all of them see. A failure in one of them is an error in all of them.

    Args:
      directory: holds the run's checkpoints; made if it is not there.
      step: the training step, at least 0.
      values: slices and their values (`tf.Tensor`s or `tf.Variable`s of the slice's size and
        dtype). Over all processes, the slices of a tensor cover each element exactly once.
      metadata: what else belongs to the checkpoint, as plain JSON; that of process 0 counts.
      metrics: what an evaluation of the step has found, see `record_metrics`.
      process_id: which of the processes this is.
      num_processes: how many processes save together.
      barrier: called with a name; returns when all processes have called it with that name.
        The names of a step come again if the step is saved again.

    Returns:
      The folder of the finished checkpoint.

    Raises:
      ValueError: the arguments do not fit together, or the step is already saved there.
      OSError: the checkpoint could not be written, or there is one of a newer format in its place;
        earlier ones are as they were.
    """
    if num_processes > 1 and barrier is None:
        raise ValueError(f"{num_processes} processes that save together need a barrier.")
    if not 0 <= process_id < num_processes:
        raise ValueError(f"There is no process {process_id} of {num_processes}.")
    saving = _Saving(Path(directory), step, process_id, num_processes, uuid.uuid4().hex)
    phases = {
        "begin": lambda: saving.begin(values, metadata),
        "write": lambda: saving.write(values),
        "finish": lambda: saving.finish(metadata, metrics or {}),
    }
    failure: Exception | None = None
    for name, phase in phases.items():
        if failure is None:
            try:
                phase()
            except Exception as error:
                failure = error
        # A process that failed meets the others all the same, or they would wait for ever.
        if barrier is not None:
            barrier(f"checkpoint-{step}-{name}")
    if failure is not None:
        saving.clean_up()
        raise saving.explained(failure) from failure
    saving.check_finished()
    return saving.folder


def save_in_parts(
    directory: str | PathLike[str],
    step: int,
    parts: Iterable[Sequence[tuple[Slice, tf.Tensor]]],
    metadata: dict,
) -> Path:
    """Saves like `save`, in one process, with no more in memory than a part at a time.

    Args:
      directory: holds the checkpoints; made if it is not there.
      step: the training step, at least 0.
      parts: slices and their values, which are asked for as they are written; each part becomes a
        file.
      metadata: as of `save`.

    Returns:
      The folder of the finished checkpoint.

    Raises:
      ValueError, OSError: as of `save`.
    """
    saving = _Saving(Path(directory), step, 0, 1, uuid.uuid4().hex)
    try:
        saving.begin([], metadata)
        count = 0
        for count, values in enumerate(parts, start=1):
            _check_values(values)
            replace(saving, process_id=count - 1).write(values)
        replace(saving, num_processes=count).finish(metadata, {})
    except Exception as error:
        saving.clean_up()
        raise saving.explained(error) from error
    return saving.folder


@dataclass(frozen=True)
class _Saving:
    """One process's part in saving one checkpoint; `word` is this process's, of this save."""

    directory: Path
    step: int
    process_id: int
    num_processes: int
    word: str

    @property
    def folder(self) -> Path:
        return files.step_folder(self.directory, self.step)

    @property
    def temporary(self) -> Path:
        return files.temporary_folder(self.directory, self.step)

    def begin(self, values: Sequence[tuple[Slice, tf.Tensor]], metadata: dict) -> None:
        """Checks what was given; process 0 makes the empty temporary folder."""
        _check_place(self.directory, self.step)
        _check_values(values)
        if self.process_id != 0:
            return
        _check_metadata(metadata)
        if self._is_saved():
            raise ValueError(
                f"Step {self.step} is already saved as {self.folder}; a finished checkpoint is"
                " not overwritten. Delete it first, or save in another directory."
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        files.remove(self.temporary)
        self.temporary.mkdir()

    def write(self, values: Sequence[tuple[Slice, tf.Tensor]]) -> None:
        """Writes this process's data file, and last a note of what is in it."""
        if not self.temporary.is_dir():
            raise OSError("process 0 did not begin the checkpoint, see its error")
        note: dict = {"word": self.word, "slices": [_encoded(each) for each, _ in values]}
        if values:
            prefix = self.temporary / _part(self.process_id)
            with tf.device("CPU:0"):
                tf.raw_ops.SaveV2(
                    prefix=str(prefix),
                    tensor_names=[each.name for each, _ in values],
                    shape_and_slices=[each.spec for each, _ in values],
                    tensors=[_storable(value) for _, value in values],
                )
            data = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
            files.sync(data)
            record = FileRecord.of(data)
            note["data"] = {"size": record.size, "sha256": record.sha256}
        files.write_synced(_note(self.temporary, self.process_id), json.dumps(note).encode())

    def finish(self, metadata: dict, metrics: Mapping[str, float]) -> None:
        """Process 0 joins the parts, writes the marker and gives the folder its final name."""
        if self.process_id != 0:
            return
        notes = [self._read_note(process_id) for process_id in range(self.num_processes)]
        slices = [_decoded(each) for note in notes for each in note["slices"]]
        if not slices:
            raise ValueError(f"There is nothing to save at step {self.step}: no slices.")
        check_tiling(slices)
        records = self._merge(notes)
        content = json.dumps(metadata, indent=1).encode()
        files.write_synced(self.temporary / METADATA, content)
        files.sync(self.temporary / f"{VARIABLES}.index")
        for name in (METADATA, f"{VARIABLES}.index"):
            records[name] = FileRecord.of(self.temporary / name)
        float16 = sorted({each.name for each in slices if each.dtype == tf.float16})
        words = tuple(note["word"] for note in notes)
        if metrics:
            record_metrics(self.temporary, metrics)
        Marker(self.step, records, tuple(float16), words, time.time()).write(self.temporary)
        files.sync(self.temporary)
        if os.path.lexists(self.folder):
            aside = files.set_aside(self.folder)
            logging.warning(
                "%s is not a checkpoint of step %d, or is damaged: it is kept as %s, and the step"
                " is saved anew.",
                *(self.folder, self.step, aside),
            )
        self.temporary.rename(self.folder)
        files.sync(self.directory)

    def _merge(self, notes: list[dict]) -> dict[str, FileRecord]:
        """Joins the parts under one index; renames data files, does not copy them."""
        parts = [number for number, note in enumerate(notes) if "data" in note]
        with tf.device("CPU:0"):
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=[str(self.temporary / _part(number)) for number in parts],
                destination_prefix=str(self.temporary / VARIABLES),
                delete_old_dirs=False,
            )
        for number in range(self.num_processes):
            _note(self.temporary, number).unlink()
        return {
            f"{VARIABLES}.data-{place:05d}-of-{len(parts):05d}": FileRecord(**notes[number]["data"])
            for place, number in enumerate(parts)
        }

    def _read_note(self, process_id: int) -> dict:
        try:
            return json.loads(_note(self.temporary, process_id).read_bytes())
        except FileNotFoundError:
            raise OSError(f"process {process_id} did not write its part, see its error") from None

    def _is_saved(self) -> bool:
        try:
            marker = Marker.read(self.folder)
            marker.check_sizes(self.folder)
        except NewerFormatError:
            raise
        except UnusableCheckpointError:
            return False
        return marker.step == self.step  # A folder may have been given another one's name.

    def check_finished(self) -> None:
        """Makes sure that the finished checkpoint has this process's part in it."""
        try:
            words = Marker.read(self.folder).writers
        except UnusableCheckpointError:
            words = ()
        if self.word not in words:
            unfinished = OSError("process 0 did not finish the checkpoint, see its error")
            raise self.explained(unfinished) from None

    def clean_up(self) -> None:
        """Deletes what a failed save left; if that fails too, it is under a temporary name."""
        if self.process_id == 0:
            shutil.rmtree(self.temporary, ignore_errors=True)

    def explained(self, failure: Exception) -> Exception:
        """The failure as an error for the user: one sentence, if the file system is to blame."""
        if isinstance(failure, tf.errors.OpError):
            why = reason(failure)
        elif isinstance(failure, OSError):
            why = str(failure)
        else:
            return failure
        return OSError(
            f"The checkpoint of step {self.step} could not be saved in {self.directory}:"
            f" {why}. Checkpoints saved there before are untouched."
        )


def _check_place(directory: Path, step: int) -> None:
    if step < 0:
        raise ValueError(f"The step of a checkpoint is at least 0, not {step}.")
    if ":/" in str(directory):  # Path made one slash of two.
        raise ValueError(
            f"Checkpoints are written to a mounted file system, not to the address {directory}."
        )


def _check_values(values: Sequence[tuple[Slice, tf.Tensor]]) -> None:
    for each, value in values:
        if each.dtype not in _DTYPES:
            raise ValueError(
                f"{each.name!r} is {each.dtype.name}, which checkpoints do not hold; they hold"
                f" {', '.join(dtype.name for dtype in _DTYPES)}."
            )
        if tuple(value.shape) != each.size or value.dtype != each.dtype:
            raise ValueError(
                f"The slice of {each.name!r} at {each.begin} is {each.dtype.name} {each.size}, but"
                f" its value is {tf.as_dtype(value.dtype).name} {tuple(value.shape)}."
            )


def _check_metadata(metadata: dict) -> None:
    try:
        same = json.loads(json.dumps(metadata, allow_nan=False)) == metadata
    except (TypeError, ValueError) as error:
        raise ValueError(f"A checkpoint's metadata must be plain JSON: {error}.") from None
    if not same:
        raise ValueError(
            "A checkpoint's metadata would not come back from JSON as it is: use lists for tuples"
            " and strings for keys."
        )


def _storable(value: tf.Tensor) -> tf.Tensor:
    return tf.cast(value, tf.float32) if value.dtype == tf.float16 else value


def _part(process_id: int) -> str:
    return f"part-{process_id:05d}"


def _note(folder: Path, process_id: int) -> Path:
    return folder / f"{_part(process_id)}.json"


def _encoded(part: Slice) -> list:
    numbers = (part.shape, part.begin, part.size)
    return [part.name, *([int(number) for number in each] for each in numbers), part.dtype.name]


def _decoded(fields: list) -> Slice:
    name, shape, begin, size, dtype = fields
    return Slice(name, tuple(shape), tuple(begin), tuple(size), tf.as_dtype(dtype))
