"""Deletes checkpoints that are no longer wanted."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from t2tp.checkpoint import files
from t2tp.checkpoint.marker import Marker
from t2tp.checkpoint.metrics import Goal
from t2tp.checkpoint.reading import all_steps
from t2tp.whole_file import remove_unfinished

# In less time, whoever evaluates has written metrics into a checkpoint's folder, or was killed.
_EVALUATORS_SECONDS = 600.0


@dataclass(frozen=True)
class Retention:
    """Which finished checkpoints stay.

    Attributes:
      max_to_keep: how many of the newest, at least 1.
      every_n_hours: the oldest stays besides, and then one every so many hours; None: no others.
      best: the best one stays besides; None: no other.
    """

    max_to_keep: int
    every_n_hours: float | None = None
    best: Goal | None = None

    def __post_init__(self) -> None:
        if self.max_to_keep < 1:
            raise ValueError(f"At least one checkpoint has to be kept, not {self.max_to_keep}.")
        if self.every_n_hours is not None and not self.every_n_hours > 0:
            raise ValueError(f"One checkpoint every {self.every_n_hours} hours cannot be kept.")

    def stays(self, folders: dict[int, Path]) -> set[int]:
        """The steps that stay, of some finished checkpoints: their folders by step, ascending."""
        stay = set(list(folders)[-self.max_to_keep :])
        if self.every_n_hours is not None:
            stay |= _every(3600 * self.every_n_hours, folders)
        if self.best is not None and (best := self.best.best(folders)) is not None:
            stay.add(best[0])
        return stay


def keep(directory: str | PathLike[str], retention: Retention) -> None:
    """Deletes finished checkpoints of a directory, and what crashes left there.

    Checkpoints that are damaged, or of a newer format, do not count and are not touched. Temporary
    folders are deleted up to the newest finished step: one of a later step may be a save that is
    going on. With several processes, one of them calls this.

    Args:
      directory: holds the run's checkpoints.
      retention: which finished ones stay.
    """
    directory = Path(directory)
    steps = all_steps(directory)
    folders = {step: files.step_folder(directory, step) for step in steps}
    stay = retention.stays(folders)
    for step, folder in folders.items():
        if step not in stay:
            files.discard(folder)
    for step, path in files.temporary_folders(directory).items():
        if steps and step <= steps[-1]:
            files.remove(path)
    for path in files.discarded_folders(directory):
        files.remove(path)
    remove_unfinished(directory)
    for step in stay:
        remove_unfinished(folders[step], _EVALUATORS_SECONDS)


def _every(seconds: float, folders: dict[int, Path]) -> set[int]:
    """The oldest checkpoint, and each that is so much younger than the last of these.

    What is chosen depends on the checkpoints alone, so that it is the same after a restart, and
    each time when those between have been deleted.
    """
    chosen: set[int] = set()
    last: float | None = None
    for step, folder in folders.items():
        saved_at = Marker.read(folder).saved_at
        if saved_at is not None and (last is None or saved_at - last >= seconds):
            chosen.add(step)
            last = saved_at
    return chosen
