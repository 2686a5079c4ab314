"""The most memory that this program has used."""

import ctypes
import os
import re
from pathlib import Path


def peak_bytes() -> int:
    """Of this program alone: `getrusage` counts what the process was before it became this one."""
    return _status("VmHWM")


def resident_bytes() -> int:
    """What this program uses now."""
    return _status("VmRSS")


def begin_peak_again() -> None:
    """Makes `peak_bytes` count from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024


def give_back_freed_blocks() -> None:
    """Makes glibc give freed blocks of a megabyte back at once, so that the peak is what is held.

    It keeps those of up to 32 MB for later, how many depends on what runs at the same time. So
    does oneDNN's pool, which TensorFlow allocates from, unless it has started already.
    """
    os.environ["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"
    mmap_threshold, arena_max = -3, -8  # M_MMAP_THRESHOLD, M_ARENA_MAX
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(mmap_threshold, 1_000_000)
    mallopt(arena_max, 1)
