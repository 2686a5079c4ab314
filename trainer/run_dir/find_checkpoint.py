"""Finds the checkpoints of a run, and the checkpoint that a path names."""

import os
from pathlib import Path

from t2tp import checkpoint
from t2tp.checkpoint import Checkpoint, UnusableCheckpointError


def checkpoint_directory(output_dir: str) -> Path:
    """Returns the directory of a run's checkpoints."""
    return Path(output_dir) / "checkpoints"


def find(path: str) -> Checkpoint:
    """Opens the checkpoint that a user's path names.

    Args:
      path: a checkpoint's directory, or the path `variables` in this directory (TensorFlow's prefix
        of the checkpoint). The path of a run, or of its directory of checkpoints, opens the latest
        checkpoint.

    Raises:
      FileNotFoundError: there is no checkpoint.
      UnusableCheckpointError: the checkpoint is unfinished, damaged or unreadable.
    """
    try:
        return _find(path)
    except (FileNotFoundError, UnusableCheckpointError):
        raise
    except OSError as error:
        raise UnusableCheckpointError(f"{path} cannot be read: {error}") from error


def find_all(paths: str) -> list[Checkpoint]:
    """Opens the checkpoints in a user's list; raises the errors of `find`.

    The list is separated by commas; a path may itself contain commas.
    """
    return [find(path) for path in split_paths(paths)]


def split_paths(text: str) -> list[str]:
    """Splits a text at commas, except at commas inside existing paths."""
    pieces, paths = text.split(","), []
    while pieces:
        joined = (",".join(pieces[:end]).strip() for end in range(len(pieces), 1, -1))
        there = (each for each in joined if os.path.lexists(each.removesuffix("/variables")))
        path = next(there, pieces[0].strip())
        paths.append(path)
        del pieces[: path.count(",") + 1]
    return [path for path in paths if path]


def _find(path: str) -> Checkpoint:
    named = Path(path)
    if named.name == "variables" and not named.exists():
        named = named.parent
    for directory in (checkpoint_directory(str(named)), named):
        steps = checkpoint.step_directories(directory)
        if steps:
            return Checkpoint(list(steps.values())[-1])
    if not named.exists():
        raise FileNotFoundError(f"{path} does not exist: name a checkpoint's directory, or a run's")
    if checkpoint_directory(str(named)).is_dir() or named.name == "checkpoints":
        raise FileNotFoundError(f"{path} holds no finished checkpoint")
    return Checkpoint(named)
