"""Runs a function in a process group of its own, which ends as a whole."""

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
    """Calls a function in a new process, which may start others, and waits for its end.

    When it returns or raises, all of these processes have ended. So they do when this process dies.

    Args:
      function: function to call; its threads may fail, for instance because a process died.
      *arguments: arguments of the call.

    Raises:
      WorkerDeathError: a thread of the function failed, or its process was killed.
      Exception: the function failed.
    """
    # Not forked: TensorFlow's threads, where it is loaded, do not survive that.
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
        process.kill()  # If it had no group yet.
        process.join()
    if error is not None:
        raise error


def _call(sender: Connection, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.setsid()
    # Whoever waits for a thread that failed may wait for ever.
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
