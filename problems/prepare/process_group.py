"""Runs a function in a separate process group, and ends all processes of the group together."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from t2tp.problems.prepare.shard_workers import WorkerDeathError, when_parent_ends


def run_apart(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function in a new process and waits for its end; the function may start processes.

    When this call returns or raises, or the calling process dies, the new process and all processes
    that it started end.

    Raises:
      WorkerDeathError: a thread of the function failed, for instance because a process died; or
        the function's process was killed.
      Exception: the error that the function raised.
    """
    # Not forked: if TensorFlow is loaded, its threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(sender, function, arguments))
    process.start()
    sender.close()
    assert process.pid is not None
    try:
        error = receiver.recv()
    except EOFError as lost:
        raise WorkerDeathError("a worker process was killed") from lost
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # In case it has not made its group yet.
        process.join()
    if error is not None:
        raise error


def _call(sender: Connection, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.setsid()
    # Code that waits for a failed thread may wait forever, so the whole group ends.
    threading.excepthook = lambda _: _end_group()
    when_parent_ends(_end_group)
    error = None
    try:
        function(*arguments)
    except Exception as raised:
        error = raised
    try:
        sender.send(error)
    except (pickle.PicklingError, TypeError, AttributeError):
        sender.send(RuntimeError(str(error)))


def _end_group() -> None:
    os.killpg(0, signal.SIGKILL)
