"""Deletes checkpoints that are no longer wanted."""

from __future__ import annotations

import shutil
from os import PathLike
from pathlib import Path

from t2tp.checkpoint import files
from t2tp.checkpoint.reading import all_steps


def keep(directory: str | PathLike[str], max_to_keep: int) -> None:
    """Deletes the oldest finished checkpoints of a directory, and what crashes left there.

    Damaged checkpoints do not count and are not touched. Temporary folders are deleted up to the
    newest finished step: one of a later step may be a save that is going on. With several
    processes, one of them calls this.

    Args:
      directory: holds the run's checkpoints.
      max_to_keep: how many finished ones stay, at least 1.

    Raises:
      ValueError: `max_to_keep` is less than 1.
    """
    if max_to_keep < 1:
        raise ValueError(f"At least one checkpoint has to be kept, not {max_to_keep}.")
    directory = Path(directory)
    steps = all_steps(directory)
    for step in steps[:-max_to_keep]:
        files.discard(files.step_folder(directory, step))
    for step, path in files.temporary_folders(directory).items():
        if steps and step <= steps[-1]:
            shutil.rmtree(path)
    for path in files.discarded_folders(directory):
        shutil.rmtree(path)
