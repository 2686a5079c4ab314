"""Averages checkpoints of a run; the average often evaluates better than any single one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from t2tp import checkpoint
from t2tp.atomic_file import write_bytes
from t2tp.checkpoint import Checkpoint, Slice
from t2tp.checkpoint.reading import AVERAGED
from t2tp.checkpoint.variables import CheckpointMismatchError, slices_as_saved, trainable_names
from t2tp.layers.convolution import BATCH_STATISTICS
from t2tp.program.variables import average_of
from t2tp.trainer import run_yaml
from t2tp.trainer.run_dir import huggingface_files
from t2tp.trainer.run_dir.find_checkpoint import checkpoint_directory


@dataclass(frozen=True)
class Averaged:
    """The checkpoint written by `average`.

    Attributes:
      step: step of the latest averaged checkpoint.
      has_moving_averages: whether moving averages of the weights (`ema_decay`) were averaged too.
      batch_statistics: names of batch-norm statistics, copied from the latest checkpoint.
    """

    directory: Path
    step: int
    has_moving_averages: bool
    batch_statistics: tuple[str, ...]


def last_checkpoints(output_dir: str, count: int) -> list[Checkpoint]:
    """Opens the latest checkpoints of a run.

    Raises:
      FileNotFoundError: the run has fewer than `count` checkpoints.
    """
    directory = checkpoint_directory(output_dir)
    steps = checkpoint.all_steps(directory)
    if len(steps) < count:
        raise FileNotFoundError(
            f"cannot average {count} checkpoints: {directory} holds {len(steps)}"
            f"{': steps ' if steps else ''}{', '.join(map(str, steps))}"
        )
    return [Checkpoint(checkpoint.step_directory(directory, step)) for step in steps[-count:]]


def average(
    checkpoints: Sequence[Checkpoint], output_dir: str, part_bytes: int = 64 << 20
) -> Averaged:
    """Writes a checkpoint with the averages of the trainable variables.

    The trainable variables' moving averages (`ema_decay`), if any, are averaged too. All other
    variables (optimizer state, batch-norm statistics), the step and the metadata are copied from
    the latest checkpoint. The sums are computed in float64.

    All checkpoints must have the same variables. If `output_dir` has no checkpoints yet, `run.yaml`
    and `huggingface` are copied from the run of the latest checkpoint. About `part_bytes` bytes are
    written at a time.

    Raises:
      CheckpointMismatchError: a variable differs in name, shape or dtype.
      LookupError: the latest checkpoint does not record which variables are trainable.
      ValueError: `output_dir` already has a checkpoint of the latest step.
      UnusableCheckpointError: a checkpoint is damaged.
      OSError: the result could not be written.
    """
    latest = max(checkpoints, key=lambda each: each.step)
    for each in checkpoints:
        _check_same_variables(latest, each)
    trainable = {name for name in trainable_names(latest) if latest.dtypes()[name].is_floating}
    moving = {average_of(name) for name in trainable} & set(latest.shapes())
    metadata = latest.metadata | {AVERAGED: sorted(each.step for each in checkpoints)}

    def parts() -> Iterator[list[tuple[Slice, tf.Tensor]]]:
        yield from _parts(latest, checkpoints, trainable | moving, part_bytes)
        # The checkpoint becomes complete only after the settings are copied. If the program is
        # killed earlier, `output_dir` has no checkpoint, and the program can be run again.
        _copy_settings(latest, output_dir)

    directory = checkpoint.save(checkpoint_directory(output_dir), latest.step, parts(), metadata)
    statistics = tuple(n for n in sorted(latest.shapes()) if n.split("/")[-1] in BATCH_STATISTICS)
    return Averaged(directory, latest.step, bool(moving), statistics)


def _copy_settings(latest: Checkpoint, output_dir: str) -> None:
    """Copies a run's settings to `output_dir`, unless `output_dir` already has checkpoints."""
    if checkpoint.step_directories(checkpoint_directory(output_dir)):
        return
    run = latest.path.parent.parent
    kept = huggingface_files.directory_in(run)
    if kept.is_dir():
        huggingface_files.copy_files(kept, huggingface_files.directory_in(output_dir))
    if (run / run_yaml.FILE).is_file():
        write_bytes(Path(output_dir) / run_yaml.FILE, (run / run_yaml.FILE).read_bytes())


def _parts(
    latest: Checkpoint, checkpoints: Sequence[Checkpoint], averaged: set[str], part_bytes: int
) -> Iterator[list[tuple[Slice, tf.Tensor]]]:
    """Yields the slices of the new checkpoint, in lists of about `part_bytes`."""
    part: list[tuple[Slice, tf.Tensor]] = []
    size = 0
    for name in sorted(latest.shapes()):
        for each in slices_as_saved(latest, name):
            value = _mean(checkpoints, each) if name in averaged else latest.read([each])[0]
            part.append((each, value))
            size += value.dtype.size * int(tf.size(value))
            if size >= part_bytes:
                yield part
                part, size = [], 0
    if part:
        yield part


def _mean(checkpoints: Sequence[Checkpoint], part: Slice) -> tf.Tensor:
    """Averages a slice in float64."""
    with tf.device("CPU:0"):
        total = tf.zeros(part.size, tf.float64)
        for each in checkpoints:
            total += tf.cast(each.read([part])[0], tf.float64)
        return tf.cast(total / len(checkpoints), part.dtype)


def _check_same_variables(latest: Checkpoint, other: Checkpoint) -> None:
    """Raises CheckpointMismatchError if the variables differ."""
    descriptions = [
        {name: f"{each.dtypes()[name].name} {shape}" for name, shape in each.shapes().items()}
        for each in (latest, other)
    ]
    for name in sorted({*descriptions[0], *descriptions[1]}):
        latest_kind, other_kind = (kind.get(name, "absent") for kind in descriptions)
        if latest_kind != other_kind:
            raise CheckpointMismatchError(
                f"cannot average checkpoints of different models: {name} is {other_kind} in"
                f" {other.path} and {latest_kind} in {latest.path}"
            )
