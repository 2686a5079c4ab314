"""Time spent training, without what is not training."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class TrainingClock:
    """A stop-watch that is stopped while checkpoints are written and evaluations run.

    It also knows what the time went to.
    """

    def __init__(self) -> None:
        """Starts the watch."""
        self._started = time.perf_counter()
        self._stopped = 0.0
        self._parts: defaultdict[str, float] = defaultdict(float)

    def seconds(self) -> float:
        """Seconds since the start, less those it was stopped for."""
        return time.perf_counter() - self._started - self._stopped

    def parts(self) -> dict[str, float]:
        """Seconds since the start by what they went to, as `stopped` and `counted` were told."""
        return dict(self._parts)

    @contextlib.contextmanager
    def stopped(self, what: str) -> Iterator[None]:
        """Stops the watch while this is active.

        Args:
          what: the time goes to.
        """
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            self._stopped += seconds
            self._parts[what] += seconds

    def counted(self, what: str, items: Iterable[T]) -> Iterator[T]:
        """The same items; notes how long one has to wait for them. The watch goes on meanwhile."""
        iterator = iter(items)
        while True:
            begin = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self._parts[what] += time.perf_counter() - begin
            yield item
