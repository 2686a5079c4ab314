"""Human-readable log lines, printed above the progress bar if one is shown."""

import contextlib
import logging
import re
import sys
import time

from absl import logging as absl_logging
from tqdm import tqdm

from t2tp.object_store.mirror import with_addresses
from t2tp.processes.process_spec import ProcessSpec

# Source files of libraries that also log with `absl.logging`. Their info messages are omitted,
# because they do not concern the user: an export logs lines of 4 kB about renamed tensors.
_LIBRARIES = re.compile(r"[/\\](site|dist)-packages[/\\]tensorflow(_datasets)?[/\\]")


class _ConsoleLines(logging.Handler):
    """Writes messages as lines to stderr, and each warning only once."""

    def __init__(self, prefix: str, with_time: bool) -> None:
        super().__init__()
        self._prefix = prefix
        self._with_time = with_time
        self._warned: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = with_addresses(record.getMessage())
        if record.levelno < logging.WARNING and _LIBRARIES.search(record.pathname):
            return
        if record.levelno >= logging.WARNING:
            if line in self._warned:  # Training and evaluation programs give the same warnings.
                return
            self._warned.add(line)
            line = f"warning: {line}" if record.levelno == logging.WARNING else f"error: {line}"
        # If nobody reads stderr (because t2tp_launch was killed), the run continues and is saved.
        with contextlib.suppress(BrokenPipeError):
            at = time.strftime("%H:%M:%S ", time.localtime(record.created))
            tqdm.write((at if self._with_time else "") + self._prefix + line, file=sys.stderr)


def use_plain_lines(process: ProcessSpec | None = None, with_time: bool = False) -> None:
    """Prints this process's `absl.logging` messages as plain lines on stderr.

    Processes other than process 0 print only warnings and errors, with their index. If `with_time`,
    each line begins with the time of day.
    """
    index = 0 if process is None else process.process_id
    absl_logging.set_verbosity(absl_logging.WARNING if index else absl_logging.INFO)
    logger = absl_logging.get_absl_logger()
    logger.handlers[:] = [_ConsoleLines(f"process {index}: " if index else "", with_time)]
    logger.propagate = False
