"""Log lines for people: plain, and above the progress bar if there is one."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import time

from absl import logging as absl_logging
from tqdm import tqdm

from t2tp.mesh.processes import Place

# Source files of libraries that log with `absl.logging` too. What they say of how they work is not
# for those who run programs: of an export for instance lines of 4 kB about renamed tensors.
_LIBRARIES = re.compile(r"[/\\](site|dist)-packages[/\\]tensorflow(_datasets)?[/\\]")


class _Lines(logging.Handler):
    """Writes messages as lines to stderr; a warning that was given once is not given again."""

    def __init__(self, prefix: str, with_time: bool) -> None:
        super().__init__()
        self._prefix = prefix
        self._with_time = with_time
        self._warned: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if record.levelno < logging.WARNING and _LIBRARIES.search(record.pathname):
            return
        if record.levelno >= logging.WARNING:
            if line in self._warned:  # Programs to train and to evaluate find the same.
                return
            self._warned.add(line)
            line = f"warning: {line}" if record.levelno == logging.WARNING else f"error: {line}"
        # If nobody reads any more (t2tp_launch was killed, say), the run goes on and is saved.
        with contextlib.suppress(BrokenPipeError):
            at = time.strftime("%H:%M:%S ", time.localtime(record.created))
            tqdm.write((at if self._with_time else "") + self._prefix + line, file=sys.stderr)


def use_plain_lines(place: Place | None = None, with_time: bool = False) -> None:
    """Shows what this process logs with `absl.logging` as plain lines on stderr.

    Args:
      place: which of several processes this is. Of all but the first only warnings and errors are
        shown, with the number of the process.
      with_time: whether each line begins with the time of day.
    """
    number = 0 if place is None else place.process_id
    absl_logging.set_verbosity(absl_logging.WARNING if number else absl_logging.INFO)
    logger = absl_logging.get_absl_logger()
    logger.handlers[:] = [_Lines(f"process {number}: " if number else "", with_time)]
    logger.propagate = False
