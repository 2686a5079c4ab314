"""Resident memory of this process, by /proc."""

from __future__ import annotations

import re
from pathlib import Path


def resident(what: str) -> int:
    """Returns the bytes that are resident now (`VmRSS`), or were at the peak (`VmHWM`)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{what}:\s+(\d+) kB", status)[1]) * 1024


def reset_peak() -> None:
    """Resets the peak to the current memory."""
    Path("/proc/self/clear_refs").write_text("5")
