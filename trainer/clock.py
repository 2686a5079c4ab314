"""Time spent training, without what is not training."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class TrainingClock:
    """A stop-watch that is stopped while checkpoints are written and evaluations run."""

    def __init__(self) -> None:
        """Starts the watch."""
        self._started = time.perf_counter()
        self._stopped = 0.0

    def seconds(self) -> float:
        """Seconds since the start, less those it was stopped for."""
        return time.perf_counter() - self._started - self._stopped

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the watch while this is active."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._stopped += time.perf_counter() - begin
