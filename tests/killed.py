"""Kills a writer of a whole file at the worst moment."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path


def killed_before_renaming(write: Callable[[], object], name: str = "") -> None:
    """Lets a process write files, and kills it when a file is complete but not yet renamed.

    Args:
      write: writes the files.
      name: name of the file. Default: the first file that is renamed.
    """
    replace = os.replace

    def rename(source: str | Path, target: str | Path) -> None:
        if not name or Path(target).name == name:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    def begin() -> None:
        os.rename = os.replace = rename
        write()

    process = multiprocessing.get_context("fork").Process(target=begin)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
