"""Shows how far a long loop is: a bar on a terminal, a few plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from absl import logging
from tqdm import tqdm

_T = TypeVar("_T")

# Seconds between two lines in a log.
_LINE_EVERY = 10.0


def progress(items: Iterable[_T], total: int, what: str) -> Iterator[_T]:
    """Passes the items on and shows how many have been.

    Args:
        items: what is gone through.
        total: how many there are.
        what: the loop's name for people ("encoding train").
    """
    if sys.stderr.isatty():
        yield from tqdm(items, desc=what, total=total, file=sys.stderr)
        return
    logging.info("%s: %d", what, total)
    said = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - said >= _LINE_EVERY:
            logging.info("%s: %d of %d", what, done, total)
            said = time.monotonic()
        yield item
