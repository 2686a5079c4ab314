"""A process that saves step after step in children that are killed.

A request is a number and a directory. For each request, the process forks a child that saves the
next step, keeps the last two checkpoints, and kills itself with SIGKILL before its `number`-th file
operation (to open, create, rename or delete something). The process answers `killed`, or `done` if
the child made fewer file operations.
"""

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

from t2tp.checkpoint import Retention, apply_retention, latest, save
from tests.checkpoint import samples

FILE_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


def save_next(directory: str) -> None:
    found = latest(directory)
    step = found.step + 1 if found else 1
    save(directory, step, [samples.of_step(step)], {"seen": step * 10})
    apply_retention(directory, Retention(2))


def die_at_file_operation(number: int) -> None:
    left = number

    def count(event: str, arguments: tuple) -> None:
        nonlocal left
        if event in FILE_OPERATIONS:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def save_once_and_die_at(number: int, directory: str) -> None:
    samples.of_step(0)  # TensorFlow starts here: its own file operations must not count.
    die_at_file_operation(number)
    save_next(directory)


def in_child(task: Callable[[], None]) -> int:
    """Forks a child that runs `task` and then ends; returns the child's process id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            task()
            status = 0
        finally:
            os._exit(status)
    return pid


def answer(pid: int) -> str:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {0: "done", -signal.SIGKILL: "killed"}.get(status, f"failed with {status}")


def at(number: int, directory: str) -> str:
    return answer(in_child(lambda: save_once_and_die_at(number, directory)))


def serve(requests: Connection) -> None:
    """Answers requests (lists of words) until the other end closes the connection."""
    try:
        while True:
            requests.send(at(*requests.recv()))
    except EOFError:
        pass
