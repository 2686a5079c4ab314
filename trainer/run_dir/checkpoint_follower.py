"""Follows the checkpoints of a run that another process trains."""

import json
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from absl import logging

from t2tp import checkpoint
from t2tp.processes.cluster import Cluster

_LOOK_SECONDS = 2.0


def follow_checkpoints(
    directory: Path,
    cluster: Cluster,
    known: Iterable[int],
    timeout_mins: float,
    look_seconds: float = _LOOK_SECONDS,
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
            step = _await_next(directory, yielded, 60 * timeout_mins, look_seconds)
        replies = cluster.process_allgather("next checkpoint", json.dumps(step), math.inf)
        step = json.loads(replies[0])
        if step is None:
            logging.info("no new checkpoint in %g minutes", timeout_mins)
            return
        yielded.add(step)
        yield step


def _await_next(
    directory: Path, yielded: set[int], seconds: float, look_seconds: float
) -> int | None:
    """Returns the oldest step not yielded yet, or None on timeout."""
    deadline = time.monotonic() + seconds
    while True:
        new = set(checkpoint.all_steps(directory)) - yielded
        if new:
            return min(new)
        if time.monotonic() >= deadline:
            return None
        time.sleep(min(look_seconds, max(0.0, deadline - time.monotonic())))
