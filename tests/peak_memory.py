"""Measures the memory of this process."""

import ctypes
import os
import re
from pathlib import Path


def peak_bytes() -> int:
    """Returns this program's peak; `getrusage` also counts the program that exec replaced."""
    return _status("VmHWM")


def resident_bytes() -> int:
    """Returns the memory that this process uses now."""
    return _status("VmRSS")


def begin_peak_again() -> None:
    """Makes `peak_bytes` count from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024


def give_back_freed_blocks() -> None:
    """Makes glibc return freed blocks of a megabyte at once, so that the peak is memory in use.

    By default glibc keeps some freed blocks of up to 32 MB; how many depends on concurrent threads.
    oneDNN's pool, from which TensorFlow allocates, also keeps freed blocks; it is disabled unless
    TensorFlow has started already.
    """
    os.environ["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"
    mmap_threshold, arena_max = -3, -8  # M_MMAP_THRESHOLD, M_ARENA_MAX
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(mmap_threshold, 1_000_000)
    mallopt(arena_max, 1)
