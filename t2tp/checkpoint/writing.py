"""Saves checkpoints: every process writes its slices, and the checkpoint appears atomically.

The files are written into `step-00000300.tmp`. Once all of them are on the disk, the `FINISHED`
marker is written, and then the directory is renamed to `step-00000300`. A crash before the rename
leaves a `.tmp` directory. Readers ignore it. The next save of the same step deletes it, unless
`retention` has deleted it before.

TensorFlow saves slices of float16 tensors but cannot restore them ("Dtype half not supported"), so
float16 tensors are stored as float32, which has every value of float16. The marker lists the names
of these tensors.
"""

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import tensorflow as tf
from absl import logging

from t2tp.atomic_file import sync
from t2tp.checkpoint import files
from t2tp.checkpoint.errors import reason
from t2tp.checkpoint.marker import METADATA, VARIABLES, FileRecord, Marker, data_file
from t2tp.checkpoint.metrics import record_metrics
from t2tp.checkpoint.slices import Slice, check_tiling
from t2tp.processes.cluster import ALONE, Cluster

# The dtypes whose slices TensorFlow restores, and float16, which is stored as float32.
_DTYPES = (
    *(tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64),
    *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.bool),
)


def save(
    directory: str | PathLike[str],
    step: int,
    parts: Iterable[Sequence[tuple[Slice, tf.Tensor]]],
    metadata: dict,
    *,
    metrics: Mapping[str, float] | None = None,
    cluster: Cluster = ALONE,
) -> Path:
    """Saves a step's checkpoint, and returns its directory `<directory>/step-<step>`.

    With several processes, each calls this function at the same step with its slices, on a shared
    file system. A failure in one process raises an error in all processes.

    Args:
      directory: created if missing.
      step: the training step, at least 0.
      parts: groups of slices and their values (`tf.Tensor`s or `tf.Variable`s of the slice's size
        and dtype). Each part that has slices becomes one data file. Only one part is in memory at a
        time, if they are computed lazily. With several processes, each passes one part. The slices
        of all processes cover each element of a tensor exactly once.
      metadata: plain JSON to save with the values. Only the metadata of process 0 are used.
      metrics: metrics of an evaluation of the step.
      cluster: the processes that save together. Default: this process alone.

    Raises:
      ValueError: the arguments contradict each other, or the step is already saved there.
      OSError: the checkpoint could not be written, or its name belongs to a checkpoint that is
        unreadable or of a newer format. Earlier checkpoints are unaffected.
    """
    saving = _Saving(Path(directory), step, cluster, uuid.uuid4().hex)
    with saving.together("begin"):
        saving.begin(metadata)
    number = cluster.process_id
    with saving.together("write"):
        for values in parts:
            _check_values(values)
            saving.write(number, values)
            number += 1
    with saving.together("finish"):
        if cluster.is_main_process:
            # The number of parts: with several processes, each has one.
            count = number if cluster.num_processes == 1 else cluster.num_processes
            saving.finish(count, metadata, metrics or {})
    return saving.final


@dataclass(frozen=True)
class _Saving:
    """One process's part in a save. `writer_id` is unique to the process and the save."""

    directory: Path
    step: int
    cluster: Cluster
    writer_id: str

    @property
    def final(self) -> Path:
        return files.step_directory(self.directory, self.step)

    @property
    def temporary(self) -> Path:
        return files.temporary_directory(self.directory, self.step)

    @contextlib.contextmanager
    def together(self, phase: str) -> Iterator[None]:
        """Runs a phase in all processes; if it fails in one process, it fails in all of them."""
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        # A failed process must reach the exchange too: the other processes wait there.
        cause = "" if failure is None else _cause(failure)
        causes = self.cluster.process_allgather(f"checkpoint-{self.step}-{phase}", cause)
        errors = [f"process {number}: {text}" for number, text in enumerate(causes) if text]
        if errors:
            if self.cluster.is_main_process:
                # If the removal fails too, the directory's temporary name marks it unfinished.
                shutil.rmtree(self.temporary, ignore_errors=True)
            raise self.explained(failure or OSError(errors[0])) from failure

    def begin(self, metadata: dict) -> None:
        """Checks the arguments; process 0 creates the temporary directory."""
        _check_destination(self.directory, self.step)
        if not self.cluster.is_main_process:
            return
        _check_metadata(metadata)
        if Marker.finished_step(self.final) == self.step:  # Users may rename other steps.
            raise ValueError(
                f"Step {self.step} is already saved as {self.final}; a finished checkpoint is"
                " not overwritten. Delete it first, or save in another directory."
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        files.remove(self.temporary)
        self.temporary.mkdir()

    def write(self, number: int, values: Sequence[tuple[Slice, tf.Tensor]]) -> None:
        """Writes a data file and a note, a small file that lists the data file's contents."""
        if not self.temporary.is_dir():
            raise OSError(
                f"{self.temporary}, made by process 0, is not there: all processes must share the"
                " directory"
            )
        note: dict = {"writer_id": self.writer_id, "slices": [_encode(each) for each, _ in values]}
        if values:
            prefix = self.temporary / _part(number)
            with tf.device("CPU:0"):
                tf.raw_ops.SaveV2(
                    prefix=os.fsencode(prefix),
                    tensor_names=[each.name for each, _ in values],
                    shape_and_slices=[each.spec for each, _ in values],
                    tensors=[_storable(value) for _, value in values],
                )
            data = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
            sync(data)
            note["bytes"] = data.stat().st_size
        files.write_synced(_note(self.temporary, number), json.dumps(note).encode())

    def finish(self, num_parts: int, metadata: dict, metrics: Mapping[str, float]) -> None:
        """Merges the data files, writes the marker and renames the directory."""
        notes = [
            json.loads(_note(self.temporary, number).read_bytes()) for number in range(num_parts)
        ]
        slices = [_decode(each) for note in notes for each in note["slices"]]
        if not slices:
            raise ValueError(f"There is nothing to save at step {self.step}: no slices.")
        check_tiling(slices)
        records = self._merge(notes)
        content = json.dumps(metadata, indent=1).encode()
        files.write_synced(self.temporary / METADATA, content)
        sync(self.temporary / f"{VARIABLES}.index")
        for name in (METADATA, f"{VARIABLES}.index"):
            records[name] = FileRecord.from_file(self.temporary / name)
        float16 = sorted({each.name for each in slices if each.dtype == tf.float16})
        writers = tuple(note["writer_id"] for note in notes)
        if metrics:
            record_metrics(self.temporary, metrics)
        Marker(self.step, records, tuple(float16), writers, time.time()).write(self.temporary)
        sync(self.temporary)
        if os.path.lexists(self.final):
            aside = files.set_aside(self.final)
            logging.warning(
                "%s is damaged, or not a checkpoint of step %d: it is kept as %s, and the step is"
                " saved again.",
                *(self.final, self.step, aside),
            )
        self.temporary.rename(self.final)
        sync(self.directory)

    def _merge(self, notes: list[dict]) -> dict[str, FileRecord]:
        """Merges the data files under one index, by renaming them."""
        parts = [number for number, note in enumerate(notes) if "bytes" in note]
        with tf.device("CPU:0"):
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=[
                    os.fsencode(self.temporary / _part(number)) for number in parts
                ],
                destination_prefix=os.fsencode(self.temporary / VARIABLES),
                delete_old_dirs=False,
            )
        for number in range(len(notes)):
            _note(self.temporary, number).unlink()
        return {
            data_file(index, len(parts)): FileRecord(notes[number]["bytes"])
            for index, number in enumerate(parts)
        }

    def explained(self, failure: Exception) -> Exception:
        """Returns a file-system error with a message for the user; other errors unchanged."""
        if not isinstance(failure, (tf.errors.OpError, OSError)):
            return failure
        return OSError(
            f"The checkpoint of step {self.step} could not be saved in {self.directory}:"
            f" {_cause(failure)}. Checkpoints saved there before are untouched."
        )


def _cause(failure: Exception) -> str:
    """Returns the error's message without a final period, or its type if it has no message."""
    text = reason(failure) if isinstance(failure, tf.errors.OpError) else str(failure)
    return text.rstrip(".") or type(failure).__name__


def _check_destination(directory: Path, step: int) -> None:
    if step < 0:
        raise ValueError(f"The step of a checkpoint is at least 0, not {step}.")
    if ":/" in str(directory):  # Path has merged two slashes into one.
        raise ValueError(
            f"Checkpoints are written to a mounted file system, not to the address {directory}."
        )


def _check_values(values: Sequence[tuple[Slice, tf.Tensor]]) -> None:
    for each, value in values:
        if each.dtype not in _DTYPES:
            raise ValueError(
                f"{each.name!r} is {each.dtype.name}, which checkpoints cannot store; they store"
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
            "JSON would change this checkpoint's metadata: use lists for tuples and strings for"
            " keys."
        )


def _storable(value: tf.Tensor) -> tf.Tensor:
    return tf.cast(value, tf.float32) if value.dtype == tf.float16 else value


def _part(number: int) -> str:
    return f"part-{number:05d}"


def _note(step_dir: Path, number: int) -> Path:
    return step_dir / f"{_part(number)}.json"


def _encode(part: Slice) -> list:
    numbers = (part.shape, part.begin, part.size)
    return [part.name, *([int(number) for number in each] for each in numbers), part.dtype.name]


def _decode(fields: list) -> Slice:
    name, shape, begin, size, dtype = fields
    return Slice(name, tuple(shape), tuple(begin), tuple(size), tf.as_dtype(dtype))
