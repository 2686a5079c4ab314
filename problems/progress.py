"""Shows how far a long work is: a bar on a terminal, a few plain lines in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from absl import logging
from tqdm import tqdm

# Seconds between two lines in a log.
_LINE_EVERY = 10.0


class Progress:
    """Shows how many of a number of things have been done; a context manager."""

    def __init__(self, total: int, what: str):
        """Begins to show.

        Args:
            total: how many things there are.
            what: the work's name for people ("encoding train").
        """
        self._total = total
        self._what = what
        self._said = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(desc=what, total=total, file=sys.stderr)
        else:
            logging.info("%s: %d", what, total)

    def show(self, done: int) -> None:
        """Shows that so many have been done, counted from the beginning."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        elif time.monotonic() - self._said >= _LINE_EVERY:
            logging.info("%s: %d of %d", self._what, done, self._total)
            self._said = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        failure: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
