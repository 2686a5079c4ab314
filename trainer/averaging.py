"""The average of several checkpoints of a run, which often evaluates better than each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from t2tp import checkpoint
from t2tp.checkpoint import Checkpoint, Slice
from t2tp.layers.convolution import BATCH_STATISTICS
from t2tp.optim.averages import average_of
from t2tp.trainer import run_files
from t2tp.trainer.checkpointing import (
    CheckpointMismatchError,
    checkpoint_folder,
    slices_as_saved,
    trainable_names,
)
from t2tp.whole_file import write_bytes

AVERAGED = "averaged"  # In the metadata: the steps of the checkpoints.

# Slices are written together up to so many bytes.
_PART_BYTES = 64 << 20


@dataclass(frozen=True)
class Averaged:
    """What `average` has written.

    Attributes:
      folder: of the checkpoint.
      step: its step, that of the newest checkpoint.
      has_moving_averages: whether the run kept moving averages of its weights (`ema_decay`), which
        evaluation reads: they were averaged too.
      batch_statistics: variables of batch norms that are the newest checkpoint's.
    """

    folder: Path
    step: int
    has_moving_averages: bool
    batch_statistics: tuple[str, ...]


def last_checkpoints(output_dir: str, count: int) -> list[Checkpoint]:
    """Opens the newest checkpoints of a run.

    Raises:
      FileNotFoundError: it has less than `count`.
    """
    directory = checkpoint_folder(output_dir)
    steps = checkpoint.all_steps(directory)
    if len(steps) < count:
        raise FileNotFoundError(
            f"{count} checkpoints are to be averaged, and {directory} holds {len(steps)}"
            f"{': steps ' if steps else ''}{', '.join(map(str, steps))}"
        )
    return [Checkpoint(checkpoint.step_folder(directory, step)) for step in steps[-count:]]


def average(checkpoints: Sequence[Checkpoint], output_dir: str) -> Averaged:
    """Writes a checkpoint whose trainable variables are the averages of theirs.

    So are the moving averages of these (`ema_decay`), if the run has kept them. They are added up
    in float64, slice by slice as the newest was saved, so that there are never many of them in
    memory. All other variables (what the optimizer keeps, the statistics of batch norms) are the
    newest's, and so are step and metadata.

    Args:
      checkpoints: at least one, of the same variables.
      output_dir: the folder of the result, a run's: its `checkpoints` gets the checkpoint. The
        run's `hparams.json` and `flags.json` are copied along if they are beside the newest.

    Raises:
      CheckpointMismatchError: a variable is not the same in all.
      LookupError: the newest does not say which variables are trainable.
      ValueError: there is a checkpoint of that step.
      UnusableCheckpointError: a checkpoint is damaged.
      OSError: the result could not be written.
    """
    newest = max(checkpoints, key=lambda each: each.step)
    for each in checkpoints:
        _check_same_variables(newest, each)
    trainable = {name for name in trainable_names(newest) if newest.dtypes()[name].is_floating}
    moving = {average_of(name) for name in trainable} & set(newest.shapes())
    metadata = newest.metadata | {AVERAGED: sorted(each.step for each in checkpoints)}
    parts = _parts(newest, checkpoints, trainable | moving)
    folder = checkpoint.save_in_parts(checkpoint_folder(output_dir), newest.step, parts, metadata)
    for name in (run_files.HPARAMS_FILE, run_files.FLAGS_FILE):
        source, target = newest.path.parent.parent / name, Path(output_dir) / name
        if source.is_file() and not target.exists():
            write_bytes(target, source.read_bytes())
    statistics = tuple(n for n in sorted(newest.shapes()) if n.split("/")[-1] in BATCH_STATISTICS)
    return Averaged(folder, newest.step, bool(moving), statistics)


def _parts(
    newest: Checkpoint, checkpoints: Sequence[Checkpoint], averaged: set[str]
) -> Iterator[list[tuple[Slice, tf.Tensor]]]:
    """The slices of the result, some at a time."""
    part: list[tuple[Slice, tf.Tensor]] = []
    size = 0
    for name in sorted(newest.shapes()):
        for each in slices_as_saved(newest, name):
            value = _mean(checkpoints, each) if name in averaged else newest.read([each])[0]
            part.append((each, value))
            size += value.dtype.size * int(tf.size(value))
            if size >= _PART_BYTES:
                yield part
                part, size = [], 0
    if part:
        yield part


def _mean(checkpoints: Sequence[Checkpoint], wanted: Slice) -> tf.Tensor:
    """The average of a slice, in its dtype."""
    with tf.device("CPU:0"):
        total = tf.zeros(wanted.size, tf.float64)
        for each in checkpoints:
            total += tf.cast(each.read([wanted])[0], tf.float64)
        return tf.cast(total / len(checkpoints), wanted.dtype)


def _check_same_variables(newest: Checkpoint, other: Checkpoint) -> None:
    """Refuses checkpoints of different models."""
    kinds = [
        {name: f"{each.dtypes()[name].name} {shape}" for name, shape in each.shapes().items()}
        for each in (newest, other)
    ]
    for name in sorted({*kinds[0], *kinds[1]}):
        ours, theirs = (kind.get(name, "absent") for kind in kinds)
        if ours != theirs:
            raise CheckpointMismatchError(
                f"checkpoints of different models have no average: {name} is {theirs} in"
                f" {other.path} and {ours} in {newest.path}"
            )
