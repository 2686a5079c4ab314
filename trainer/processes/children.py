"""Child processes that receive the signals of their parent and do not outlive it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from t2tp.trainer.errors import Interrupted

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


def start(command: Sequence[str], cores: Sequence[int] = (), **options: Any) -> subprocess.Popen:
    """Starts a process in a new session, so that a terminal's Ctrl-C reaches only this process.

    Call it from the main thread only: the kernel signals the child when the thread that started it
    ends.

    Args:
      command: the program and its arguments.
      cores: those that it may use; by default those of this process.
      **options: of `subprocess.Popen`.

    Raises:
      OSError: the command cannot be started.
    """

    def prepare() -> None:
        _end_with_the_parent()
        if cores:
            os.sched_setaffinity(0, cores)

    return subprocess.Popen(command, start_new_session=True, preexec_fn=prepare, **options)


@contextlib.contextmanager
def forwarded_signals(processes: Sequence[subprocess.Popen]) -> Iterator[list[int]]:
    """Forwards SIGINT and SIGTERM to the processes while the context is active.

    Args:
      processes: the running processes; more may be added.

    Yields:
      The numbers of the signals that were forwarded, added as they arrive.

    Raises:
      Interrupted: a signal arrived before a process was started.
    """

    def forward(number: int, frame: FrameType | None) -> None:
        if not processes:
            raise Interrupted("interrupted", number)
        received.append(number)
        for process in processes:
            process.send_signal(number)

    received: list[int] = []
    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(code: int) -> int:
    """Converts a process's exit code to that of shells: 128 + n if signal n ended it."""
    return code if code >= 0 else 128 - code


def _end_with_the_parent() -> None:
    """Asks the kernel to send SIGTERM to this process when its parent dies, even of SIGKILL."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
