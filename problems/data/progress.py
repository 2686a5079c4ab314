"""Shows the progress of a long task: a bar on a terminal, occasional lines in a log."""

from __future__ import annotations

import sys
import time

from absl import logging
from tqdm import tqdm

# Seconds between two lines in a log.
_LINE_EVERY = 10.0


class ProgressBar:
    """Shows how many items of a total are done; a context manager."""

    def __init__(self, total: int, what: str):
        """Shows the start of the task, named `what`, with `total` items."""
        self._total = total
        self._what = what
        self._said = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(desc=what, total=total, file=sys.stderr)
        else:
            logging.info("%s: 0 of %d", what, total)

    def show(self, done: int) -> None:
        """Shows that this many items are done, counted from the start."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        elif time.monotonic() - self._said >= _LINE_EVERY:
            logging.info("%s: %d of %d", self._what, done, self._total)
            self._said = time.monotonic()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
