"""Deletes old checkpoints."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from t2tp.atomic_file import remove_unfinished
from t2tp.best_metric import BestMetric
from t2tp.checkpoint import files
from t2tp.checkpoint.marker import Marker
from t2tp.checkpoint.metrics import best_of
from t2tp.checkpoint.reading import all_steps

# Max age of a metrics file that an evaluation is still writing. Older unfinished files are deleted.
_EVALUATORS_SECONDS = 600.0


@dataclass(frozen=True)
class Retention:
    """The policy for keeping finished checkpoints.

    Attributes:
      max_to_keep: number of latest checkpoints to keep, at least 1.
      every_n_hours: hours between further checkpoints to keep, beginning with the oldest. None: no
        further checkpoints.
      best: metric whose best checkpoint is kept too; None: no metric.
    """

    max_to_keep: int
    every_n_hours: float | None = None
    best: BestMetric | None = None

    def __post_init__(self) -> None:
        if self.max_to_keep < 1:
            raise ValueError(f"At least one checkpoint has to be kept, not {self.max_to_keep}.")
        if self.every_n_hours is not None and not self.every_n_hours > 0:
            raise ValueError(f"One checkpoint every {self.every_n_hours} hours cannot be kept.")

    def steps_to_keep(self, directories: dict[int, Path]) -> set[int]:
        """Selects the steps to keep from finished checkpoints, given by ascending step."""
        steps = set(list(directories)[-self.max_to_keep :])
        if self.every_n_hours is not None:
            steps |= _every(3600 * self.every_n_hours, directories)
        if self.best is not None and (best := best_of(self.best, directories)) is not None:
            steps.add(best[0])
        return steps


def apply_retention(directory: str | PathLike[str], retention: Retention) -> None:
    """Deletes old finished checkpoints of a directory, and leftovers of crashes.

    Damaged checkpoints and newer formats are not counted and not deleted. Temporary directories are
    deleted up to the latest finished step; later ones are kept, because a save may be in progress.
    With several processes, one process calls this function.
    """
    directory = Path(directory)
    steps = all_steps(directory)
    directories = {step: files.step_directory(directory, step) for step in steps}
    kept_steps = retention.steps_to_keep(directories)
    for step, step_dir in directories.items():
        if step not in kept_steps:
            files.discard(step_dir)
    for step, path in files.temporary_directories(directory).items():
        if steps and step <= steps[-1]:
            files.remove(path)
    for path in files.discarded_directories(directory):
        files.remove(path)
    remove_unfinished(directory)
    for step in kept_steps:
        remove_unfinished(directories[step], _EVALUATORS_SECONDS)


def _every(seconds: float, directories: dict[int, Path]) -> set[int]:
    """Selects the oldest checkpoint, then the next that is at least `seconds` younger, and so on.

    Neither a restart nor deleting the checkpoints that are not selected changes the result.
    """
    chosen: set[int] = set()
    last: float | None = None
    for step, step_dir in directories.items():
        saved_at = Marker.read(step_dir).saved_at
        if last is None or saved_at - last >= seconds:
            chosen.add(step)
            last = saved_at
    return chosen
