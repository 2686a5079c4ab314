"""Finds the checkpoints of a run, now and while it trains, and the checkpoint of a path."""

import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from absl import logging

from t2tp import checkpoint
from t2tp.checkpoint import Checkpoint, UnusableCheckpointError
from t2tp.processes.cluster import Cluster

_LOOK_SECONDS = 2.0


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
        named = Path(path)
        if named.name == "variables" and not named.exists():
            named = named.parent
        for directory in (checkpoint_directory(str(named)), named):
            steps = checkpoint.step_directories(directory)
            if steps:
                return Checkpoint(list(steps.values())[-1])
        if not named.exists():
            raise FileNotFoundError(
                f"{path} does not exist: name a checkpoint's directory, or a run's"
            )
        if checkpoint_directory(str(named)).is_dir() or named.name == "checkpoints":
            raise FileNotFoundError(f"{path} holds no finished checkpoint")
        return Checkpoint(named)
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


def follow_checkpoints(
    directory: Path, cluster: Cluster, known: Iterable[int], timeout_mins: float
) -> Iterator[int]:
    """Yields the step of each finished checkpoint once, oldest first; waits for new checkpoints.

    Process 0 polls the directory; all processes yield the same steps.

    The directory need not exist yet. The steps in `known` are skipped. The iteration ends after
    `timeout_mins` without a new checkpoint.
    """
    yielded = set(known)
    while True:
        step = None
        if cluster.is_main_process:
            step = _await_next(directory, yielded, 60 * timeout_mins)
        step = cluster.process_allgather("next checkpoint", step, math.inf)[0]
        if step is None:
            logging.info("no new checkpoint in %g minutes", timeout_mins)
            return
        yielded.add(step)
        yield step


def _await_next(directory: Path, yielded: set[int], seconds: float) -> int | None:
    """Returns the oldest step not yielded yet, or None on timeout."""
    deadline = time.monotonic() + seconds
    while True:
        new = set(checkpoint.all_steps(directory)) - yielded
        if new:
            return min(new)
        if time.monotonic() >= deadline:
            return None
        time.sleep(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
