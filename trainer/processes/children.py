"""Child processes that receive the signals of their parent and do not outlive it."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from t2tp.trainer.errors import SIGNALLED, Interrupted

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


def stop_signals() -> list[signal.Signals]:
    """Returns SIGINT, SIGTERM and, unless `nohup` has disabled it, SIGHUP."""
    keeps_running = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if keeps_running else [signal.SIGHUP])]


def start(
    command: Sequence[str],
    processes: list[subprocess.Popen],
    cores: Sequence[int] = (),
    **options: Any,
) -> subprocess.Popen:
    """Starts a child process in a new session, so that a terminal's Ctrl-C reaches only the parent.

    Call this function from the main thread only: the kernel sends the child SIGTERM when the thread
    that started the child ends.

    Adds the process to `processes`, for `forwarded_signals`. The process may use `cores`; by
    default, all cores of this process. The options are arguments of `subprocess.Popen`.

    Raises:
      OSError: the command cannot be started.
    """
    parent = os.getpid()
    # Signals are blocked for two reasons. A signal between the child's start and `append` would not
    # be forwarded. A signal to the child before `exec` would run the parent's handler in the child,
    # and `exec` would erase the handler's record of the signal.
    signals = stop_signals()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    def prepare() -> None:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # The parent died before `prctl`.
            os._exit(SIGNALLED + signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if cores:
            os.sched_setaffinity(0, cores)

    try:
        process = subprocess.Popen(command, start_new_session=True, preexec_fn=prepare, **options)
        processes.append(process)
        return process
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def forwarded_signals(processes: Sequence[subprocess.Popen]) -> Iterator[list[int]]:
    """Forwards SIGHUP, SIGINT and SIGTERM to the processes, which `start` may extend.

    Yields:
      The numbers of the forwarded signals, added as they arrive.

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
    with handled(forward):
        yield received


@contextlib.contextmanager
def handled(handler: Any) -> Iterator[None]:
    """Installs a handler of `stop_signals` inside the context."""
    previous = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def exit_code(code: int) -> int:
    """Converts a process's exit code to the shell's: 128 + n if signal n ended it."""
    return code if code >= 0 else SIGNALLED - code
