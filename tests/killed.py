"""Kills a writer of a whole file at the worst moment."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable


def killed_before_renaming(write: Callable[[], object]) -> None:
    """Lets a process write a file, and kills it when all is written but the file's name."""

    def begin() -> None:
        os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
        write()

    process = multiprocessing.get_context("fork").Process(target=begin)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
