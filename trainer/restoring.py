"""Which of a run's checkpoints training goes on from, agreed on by all processes."""

from __future__ import annotations

import json
import os
from dataclasses import astuple, dataclass
from pathlib import Path

from absl import logging

from t2tp import checkpoint
from t2tp.checkpoint import Checkpoint, UnusableCheckpointError
from t2tp.mesh.cluster import Cluster
from t2tp.mesh.variables import Variables
from t2tp.trainer import checkpointing
from t2tp.trainer.together import OtherProcessesError, check_same


@dataclass(frozen=True)
class Restored:
    """What the variables' values are now.

    Attributes:
      step: the step of the checkpoint.
      damaged: folders of newer checkpoints that could not be read.
    """

    step: int
    damaged: tuple[Path, ...]


def restore(saved: Checkpoint, variables: Variables, *, whole: bool) -> None:
    """Gives the variables the values of a checkpoint, if it is one of theirs.

    Args:
      saved: the checkpoint.
      variables: get the values.
      whole: see `checkpointing.check_fit`.

    Raises:
      CheckpointMismatchError: the checkpoint holds other variables.
      UnusableCheckpointError: the checkpoint is damaged, or gone.
    """
    checkpointing.check_fit(saved, variables, whole)
    checkpointing.restore(saved, variables)


def check_same_save(saved: Checkpoint, cluster: Cluster) -> None:
    """Refuses processes that have opened different checkpoints; all of them call this.

    Raises:
      OtherProcessesError: they have; all raise it.
    """
    check_same(cluster, {f"checkpoint of step {saved.step}": saved.save_id})


def restore_newest(directory: Path, variables: Variables, *, whole: bool) -> Restored | None:
    """Gives the variables the values of the newest checkpoint that can be read.

    Every slice is read with its checksum. A damaged checkpoint is passed over by all processes,
    whichever of them has noticed, and loudly.

    Args:
      directory: of the run's checkpoints, as process 0 sees it.
      variables: get the values.
      whole: see `checkpointing.check_fit`.

    Returns:
      None if there is no checkpoint: the variables are as they were.

    Raises:
      CheckpointMismatchError: the checkpoint holds other variables.
      NewerFormatError: the newest checkpoint is of a newer format.
      OtherProcessesError: another process finds another checkpoint there than process 0, or none.
      UnusableCheckpointError: there are checkpoints, and none can be read.
    """
    cluster = variables.cluster
    damaged: list[Path] = []
    before: int | None = None
    while True:
        found = checkpoint.latest(directory, before) if cluster.leads else None
        newest = json.dumps(found and [found.step, found.save_id])
        newest = json.loads(cluster.agree("checkpoint", newest))
        if newest is None:
            break
        step, save_id = newest
        folder = checkpoint.step_folder(directory, step)
        attempt = _attempt(found, folder, save_id, variables, whole)
        attempts = [_Attempt(*json.loads(a)) for a in cluster.exchange("restored", attempt.encoded)]
        for process_id, each in enumerate(attempts):
            if each.is_other:
                raise OtherProcessesError(f"process {process_id}: {each.failure}")
        failures = [each.failure for each in attempts if each.failure]
        if not failures:
            return Restored(step, tuple(damaged))
        logging.error("%s Going back to the checkpoint before it.", failures[0])
        damaged.append(folder)
        before = step
    some_are_there = cluster.leads and bool(checkpoint.step_folders(directory))
    if json.loads(cluster.agree("checkpoints", json.dumps(some_are_there))):
        raise UnusableCheckpointError(
            f"{directory} holds checkpoints, and none of them can be used: each is damaged. To"
            " begin anew, choose another output_dir."
        )
    return None


@dataclass(frozen=True)
class _Attempt:
    """What came of a process's restoring.

    Attributes:
      failure: why there are no values, in a sentence; empty: there are.
      is_other: whether the process does not find the checkpoint that process 0 has found.
    """

    failure: str = ""
    is_other: bool = False

    @property
    def encoded(self) -> str:
        """As JSON."""
        return json.dumps(astuple(self))


def _attempt(
    found: Checkpoint | None, folder: Path, save_id: str, variables: Variables, whole: bool
) -> _Attempt:
    """Restores from a checkpoint, if it is the one that process 0 has found."""
    other = _Attempt(
        f"{folder.absolute()} is not the checkpoint that process 0 has found in its output_dir:"
        " that must be one folder that all processes share",
        is_other=True,
    )
    if found is None and not os.path.lexists(folder):
        return other
    try:
        saved = found or Checkpoint(folder)
        if saved.save_id != save_id:
            return other
        restore(saved, variables, whole=whole)
    except UnusableCheckpointError as error:
        return _Attempt(str(error))
    return _Attempt()
