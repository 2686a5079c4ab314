"""Restores the same checkpoint in all processes, or in none."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging

from t2tp.checkpoint.errors import (
    DamagedCheckpointError,
    DifferentCheckpointsError,
    UnusableCheckpointError,
)
from t2tp.checkpoint.files import step_directories, step_directory
from t2tp.checkpoint.reading import Checkpoint, latest
from t2tp.checkpoint.variables import restore
from t2tp.processes.cluster import Cluster
from t2tp.program.variables import Variables


@dataclass(frozen=True)
class Restored:
    """The result of a restore; `damaged` are the damaged checkpoints after the restored step."""

    step: int
    damaged: tuple[Path, ...]
    metadata: dict[str, Any]


def check_same_save(saved: Checkpoint, cluster: Cluster) -> None:
    """Raises DifferentCheckpointsError in all processes if they have opened different checkpoints.

    All processes call this function.
    """
    identity = str(saved.path.absolute()), saved.step, saved.save_id
    first, *others = cluster.process_allgather("opened checkpoint", identity)
    for process_id, (path, step, save_id) in enumerate(others, start=1):
        if save_id != first[2]:
            raise DifferentCheckpointsError(
                f"process {process_id} has opened {path} of step {step}, and process 0 a different"
                f" checkpoint, {first[0]} of step {first[1]}: start all processes with the same"
                " command, on a file system that all of them share"
            )


def restore_latest(
    directory: Path, variables: Variables, *, strict: bool, last_step: int | None = None
) -> Restored | None:
    """Restores the variables from the latest checkpoint; all processes call this function.

    Every slice is read with its checksum. If any process finds a damaged checkpoint, all skip it
    with a warning. A checkpoint that cannot be read is an error: it may be intact, so skipping it
    might continue the training from older values.

    `directory` is the directory of the checkpoints, as process 0 sees it. For `strict` see
    `variables.check_fit`. Steps after `last_step` are not considered.

    Returns:
      the result; None, with unchanged variables, if there is no checkpoint.

    Raises:
      CheckpointMismatchError: the checkpoint has other variables.
      NewerFormatError: the latest checkpoint has a newer format.
      DifferentCheckpointsError: another process finds no checkpoint, or another checkpoint than
        process 0.
      UnusableCheckpointError: all checkpoints are damaged, or the latest cannot be read.
    """
    damaged: list[Path] = []
    before = None if last_step is None else last_step + 1

    def choose() -> Checkpoint | None:
        checkpoint = latest(directory, before)
        if checkpoint is None and any(
            last_step is None or step <= last_step for step in step_directories(directory)
        ):
            raise UnusableCheckpointError(
                f"{directory} holds checkpoints, but none of them can be used: each is damaged. To"
                " start from scratch, choose another directory."
            )
        return checkpoint

    while (choice := _choose(variables.cluster, directory, choose)) is not None:
        try:
            saved = _restore_choice(choice, variables, strict)
        except DamagedCheckpointError as error:
            logging.error("%s Going back to the checkpoint before it.", error)
            damaged.append(choice.step_dir)
            before = choice.step
        else:
            return Restored(choice.step, tuple(damaged), saved.metadata)
    return None


def restore_step(directory: Path, step: int, variables: Variables, *, strict: bool) -> None:
    """Restores the variables from the checkpoint of one step, like `restore_latest`.

    A damaged checkpoint is an error here.
    """
    step_dir = step_directory(directory, step)
    choice = _choose(variables.cluster, directory, lambda: Checkpoint(step_dir))
    assert choice is not None
    _restore_choice(choice, variables, strict)


@dataclass(frozen=True)
class _ChosenCheckpoint:
    """The checkpoint that process 0 chose for all processes, open only in process 0."""

    step_dir: Path
    step: int
    save_id: str
    opened: Checkpoint | None


def _choose(
    cluster: Cluster, directory: Path, choose: Callable[[], Checkpoint | None]
) -> _ChosenCheckpoint | None:
    """Lets process 0 choose a checkpoint, or raises its error in all processes."""
    opened: Checkpoint | None = None
    failure: UnusableCheckpointError | None = None
    if cluster.is_main_process:
        try:
            opened = choose()
        except UnusableCheckpointError as error:
            failure = error
    message = [opened and [opened.step, opened.save_id], failure and str(failure)]
    chosen, reason = cluster.process_broadcast("checkpoint", message)
    if failure is not None:
        raise failure
    if reason is not None:
        raise UnusableCheckpointError(reason)
    if chosen is None:
        return None
    step, save_id = chosen
    return _ChosenCheckpoint(step_directory(directory, step), step, save_id, opened)


# Errors that a single process may have, most severe first.
_ERRORS = (DifferentCheckpointsError, UnusableCheckpointError, DamagedCheckpointError)


def _restore_choice(choice: _ChosenCheckpoint, variables: Variables, strict: bool) -> Checkpoint:
    """Restores the chosen checkpoint in all processes; all raise the most severe error."""
    outcome: tuple[int, str] | None = None
    try:
        saved = _open_same(choice)
        restore(saved, variables, strict=strict)
    except _ERRORS as error:
        # The last match: a DamagedCheckpointError is also an UnusableCheckpointError.
        rank = max(number for number, kind in enumerate(_ERRORS) if isinstance(error, kind))
        outcome = rank, str(error)
    outcomes = variables.cluster.process_allgather("restored", outcome)
    failures = [
        (each[0], process_id, each[1])
        for process_id, each in enumerate(outcomes)
        if each is not None
    ]
    if failures:
        rank, process_id, reason = min(failures)
        raise _ERRORS[rank](f"process {process_id}: {reason}" if process_id else reason)
    return saved


def _open_same(choice: _ChosenCheckpoint) -> Checkpoint:
    """Opens the chosen checkpoint and checks that it is the save that process 0 opened."""
    if choice.opened is not None:
        return choice.opened
    if os.path.lexists(choice.step_dir):
        saved = Checkpoint(choice.step_dir)
        if saved.save_id == choice.save_id:
            return saved
    raise DifferentCheckpointsError(
        f"{choice.step_dir.absolute()} is not the checkpoint that process 0 has found: all"
        " processes must share the directory"
    )
