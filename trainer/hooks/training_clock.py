"""A stopwatch for the time spent training, without checkpoints and evaluation."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class TrainingClock:
    """A stopwatch that stops while checkpoints are written and evaluations run.

    The clock also adds up the seconds of each purpose, such as "data" or "evaluation".
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Starts the watch; `now` returns seconds."""
        self._now = now
        self._started = now()
        self._stopped = 0.0
        self._parts: defaultdict[str, float] = defaultdict(float)

    def seconds(self) -> float:
        """Returns the seconds since the start, excluding the time while the watch was stopped."""
        return self._now() - self._started - self._stopped

    def parts(self) -> dict[str, float]:
        """Returns the seconds by purpose, as named in `stopped` and `counted`."""
        return dict(self._parts)

    @contextlib.contextmanager
    def stopped(self, what: str) -> Iterator[None]:
        """Stops the watch inside the context; `what` is the purpose of this time."""
        begin = self._now()
        try:
            yield
        finally:
            seconds = self._now() - begin
            self._stopped += seconds
            self._parts[what] += seconds

    def counted(self, what: str, items: Iterable[T]) -> Iterator[T]:
        """Yields the items and records the time spent waiting for them; the watch runs on."""
        iterator = iter(items)
        while True:
            begin = self._now()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self._parts[what] += self._now() - begin
            yield item
