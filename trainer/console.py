"""Log lines for people: plain, and above the progress bar if there is one."""

from __future__ import annotations

import logging
import sys

from absl import logging as absl_logging
from tqdm import tqdm


class _Lines(logging.Handler):
    """Writes messages as lines to stderr; a warning that was given once is not given again."""

    def __init__(self) -> None:
        super().__init__()
        self._warned: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if record.levelno >= logging.WARNING:
            if line in self._warned:  # Programs to train and to evaluate find the same.
                return
            self._warned.add(line)
            line = f"warning: {line}" if record.levelno == logging.WARNING else f"error: {line}"
        tqdm.write(line, file=sys.stderr)


def use_plain_lines() -> None:
    """Shows what this process logs with `absl.logging` as plain lines on stderr."""
    absl_logging.set_verbosity(absl_logging.INFO)
    logger = absl_logging.get_absl_logger()
    logger.handlers[:] = [_Lines()]
    logger.propagate = False
