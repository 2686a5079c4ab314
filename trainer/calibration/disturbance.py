"""Measures how much of a machine other programs use, from /proc."""

import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class Watch:
    """Measures the processor time that programs other than this process and its siblings use."""

    def __init__(self) -> None:
        """Begins to watch."""
        self._cores = os.cpu_count() or 1
        self._began, self._busy, self._own = time.perf_counter(), _busy(), _family_seconds()

    def others(self) -> float:
        """Returns the fraction of all cores' time that other programs used; 0 without /proc."""
        available = max(time.perf_counter() - self._began, 1e-9) * self._cores
        own = _family_seconds() - self._own
        return min(1.0, max(0.0, (_busy() - self._busy - own) / available))


def _busy() -> float:
    """Returns the core-seconds that programs and other virtual machines have used.

    Interrupts do not count, because no process caused them.
    """
    try:
        fields = [int(x) for x in Path("/proc/stat").read_text().split()[1:9]]
    except OSError:
        return 0.0
    user, nice, system, *_, steal = fields
    return (user + nice + system + steal) / _TICKS


def _family_seconds() -> float:
    """Returns the processor seconds of this process and of its parent's other children."""
    parent = str(os.getppid())
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # The process has ended.
            continue
        if fields[1] == parent:
            total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total
