"""Which of a run's checkpoints training goes on from, agreed on by all processes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from absl import logging

from t2tp import checkpoint
from t2tp.checkpoint import Checkpoint, UnusableCheckpointError
from t2tp.mesh.variables import Variables
from t2tp.trainer import checkpointing


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
      UnusableCheckpointError: there are checkpoints, and none can be read.
    """
    cluster = variables.cluster
    damaged: list[Path] = []
    before: int | None = None
    while True:
        found = checkpoint.latest(directory, before) if cluster.leads else None
        step = json.loads(cluster.agree("checkpoint", json.dumps(found and found.step)))
        if step is None:
            break
        folder = checkpoint.step_folder(directory, step)
        failure = _restored_or_why_not(found, folder, variables, whole)
        said = [why for why in cluster.exchange("restored", failure) if why]
        if not said:
            return Restored(step, tuple(damaged))
        logging.error("%s Going back to the checkpoint before it.", said[0])
        damaged.append(folder)
        before = step
    some_are_there = cluster.leads and bool(checkpoint.step_folders(directory))
    if json.loads(cluster.agree("checkpoints", json.dumps(some_are_there))):
        raise UnusableCheckpointError(
            f"{directory} holds checkpoints, and none of them can be used: each is damaged. To"
            " begin anew, choose another output_dir."
        )
    return None


def _restored_or_why_not(
    found: Checkpoint | None, folder: Path, variables: Variables, whole: bool
) -> str:
    """Restores from a checkpoint; says in a sentence why it cannot be read, if it cannot."""
    try:
        saved = found or Checkpoint(folder)
        restore(saved, variables, whole=whole)
    except UnusableCheckpointError as error:
        return str(error)
    return ""
