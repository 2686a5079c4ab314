"""Follows the checkpoints of a run that somebody else trains."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from absl import logging

from t2tp import checkpoint
from t2tp.mesh.cluster import Cluster

_LOOK_SECONDS = 2.0


def follow(
    directory: Path,
    cluster: Cluster,
    known: Iterable[int],
    timeout_mins: float,
    look_seconds: float = _LOOK_SECONDS,
) -> Iterator[int]:
    """Gives the step of each finished checkpoint once, the oldest first, as they appear.

    Process 0 looks; all processes get the same ones.

    Args:
      directory: of the run's checkpoints; it may not be there yet.
      cluster: the processes that follow.
      known: steps of checkpoints that are left out.
      timeout_mins: minutes to wait for the next one; the iteration ends when none has come.
      look_seconds: seconds from one look into the directory to the next.
    """
    given = set(known)
    while True:
        step = None
        if cluster.leads:
            step = _await_next(directory, given, 60 * timeout_mins, look_seconds)
        said = cluster.exchange("next checkpoint", json.dumps(step), math.inf)
        step = json.loads(said[0])
        if step is None:
            logging.info("no new checkpoint in %g minutes", timeout_mins)
            return
        given.add(step)
        yield step


def _await_next(
    directory: Path, given: set[int], seconds: float, look_seconds: float
) -> int | None:
    """The step of the oldest checkpoint not given yet; None if none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        new = set(checkpoint.all_steps(directory)) - given
        if new:
            return min(new)
        if time.monotonic() >= deadline:
            return None
        time.sleep(min(look_seconds, max(0.0, deadline - time.monotonic())))
