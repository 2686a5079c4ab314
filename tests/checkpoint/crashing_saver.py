"""A process that saves step after step until it is killed, again and again.

For each request it forks a child that saves steps after the latest one in a directory, and keeps
two:

    after SAVES SECONDS DIRECTORY   the child saves on and on, and is killed with SIGKILL that
                                    many saves and then that long after it began
    at NUMBER DIRECTORY             the child saves once and kills itself with SIGKILL before its
                                    file operation of that number: opening, making, renaming or
                                    deleting something

and answers `killed`, or `done` if there were fewer file operations.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from t2tp.checkpoint import Retention, apply_retention, latest, save
from tests.checkpoint import samples

FILE_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


def save_next(directory: str) -> None:
    found = latest(directory)
    step = found.step + 1 if found else 1
    save(directory, step, samples.of_step(step), {"seen": step * 10})
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


def save_on_and_on(directory: str, progress: int) -> None:
    while True:
        os.write(progress, b"!")
        save_next(directory)


def save_once_and_die_at(number: int, directory: str) -> None:
    samples.of_step(0)  # TensorFlow starts here, with file operations that are not ours.
    die_at_file_operation(number)
    save_next(directory)


def in_child(task: Callable[[], None]) -> int:
    """Forks a child that does the task and then ends; returns its process id."""
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


def after(saves: int, seconds: float, directory: str) -> str:
    read_end, write_end = os.pipe()
    pid = in_child(lambda: save_on_and_on(directory, write_end))
    os.close(write_end)
    for _ in range(saves + 1):
        os.read(read_end, 1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.close(read_end)
    return answer(pid)


def at(number: int, directory: str) -> str:
    return answer(in_child(lambda: save_once_and_die_at(number, directory)))


def serve(requests: Connection) -> None:
    """Answers requests, which are lists of words, until the other end is closed."""
    try:
        while True:
            kind, *values = requests.recv()
            requests.send(after(*values) if kind == "after" else at(*values))
    except EOFError:
        pass
