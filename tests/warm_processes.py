"""Starts processes quickly: forks them from a process that has imported TensorFlow.

Importing TensorFlow takes seconds, and tests start dozens of processes. TensorFlow is
imported but not yet initialized at the fork, so a forked process is like any other: it has its own
number, environment, signals, output and exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess

from t2tp.processes.rendezvous import free_port
from tests.patience import PATIENCE

_PRELOADED = ["tests.processes.one_process", "tests.trainer.tiny_problem", "t2tp.trainer.cli.train"]
_LOOK_SECONDS = 0.02

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(_PRELOADED)


class WarmProcess:
    """A process that calls a function without arguments.

    Attributes:
      out: the file with its standard output.
      err: the file with its standard error.
    """

    def __init__(self, target, arguments, environment, out_dir, directory=None):
        """Starts the process.

        Args:
          target: `module:function`; the function returns the exit code, or None for 0.
          arguments: arguments of the command line.
          environment: variables that differ from this process's environment.
          out_dir: directory for the process's output.
          directory: working directory of the process; by default, this process's.
        """
        _start_server()
        out_dir.mkdir(parents=True)
        self.out, self.err = out_dir / "out", out_dir / "err"
        self._process = _context.Process(
            target=_run,
            args=(target, list(arguments), dict(environment), self.out, self.err, directory),
        )
        self._process.start()

    def __enter__(self) -> WarmProcess:
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.kill()
        self._process.join()

    def signal(self, number: int) -> None:
        """Sends the process a signal."""
        os.kill(self._process.pid, number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Waits until the process ends; returns its exit code, -n if signal n ended it.

        Raises:
          TimeoutError: the process has not ended; the message has its standard error.
        """
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise TimeoutError(f"it did not end in {seconds} s:\n{self.err.read_text()}")
        return self._process.exitcode

    def wait_for_line(self, beginning: str, seconds: float = PATIENCE) -> str:
        """Waits for a line on stderr with this beginning; returns what is on stderr by then.

        Raises:
          TimeoutError: the line did not come; the message has the standard error.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.is_alive():
            said = self.err.read_text() if self.err.exists() else ""
            if f"\n{beginning}" in f"\n{said}":
                return said
            time.sleep(_LOOK_SECONDS)
        raise TimeoutError(f"it never said {beginning!r}:\n{self.err.read_text()}")


@contextlib.contextmanager
def started(target, arguments, environments, out_dir):
    """Starts several processes; kills those that have not ended by the end of the context."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(WarmProcess(target, own, environment, out_dir / str(number)))
            for number, (own, environment) in enumerate(zip(arguments, environments, strict=True))
        ]


def ended(processes, codes):
    """Waits until each process of `started` ends with its code; returns what is on each stderr."""
    with processes as running:
        found = [process.wait() for process in running]
        said = [process.err.read_text() for process in running]
    assert found == codes, said
    return said


def printed(target, arguments, environments, out_dir, seconds=120):
    """Runs several processes and checks that they succeed; returns the last line of each."""
    with started(target, arguments, environments, out_dir) as processes:
        for process in processes:
            assert process.wait(seconds) == 0, process.err.read_text()
    return [process.out.read_text().splitlines()[-1] for process in processes]


def tf_configs(number: int) -> list[dict[str, str]]:
    """Returns the TF_CONFIG variables of processes that share a mesh."""
    cluster = {"worker": [f"localhost:{free_port()}" for _ in range(number)]}
    tasks = [{"type": "worker", "index": i} for i in range(number)]
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


def start(function: Callable[..., object], *arguments: object) -> BaseProcess:
    """Starts a process that calls a module's function."""
    _start_server()
    process = _context.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def _start_server() -> None:
    """Starts the process to fork from, with the log level that its children inherit."""
    level = os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["TF_CPP_MIN_LOG_LEVEL"]
        if level is not None:
            os.environ["TF_CPP_MIN_LOG_LEVEL"] = level


def _run(target, arguments, environment, out, err, directory):
    """Runs `target` as the interpreter runs a program, including output, exit code and atexit."""
    if directory is not None:
        os.chdir(directory)
    for path, descriptor in ((out, 1), (err, 2)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), descriptor)
    os.environ.update(environment)
    sys.argv = [target, *arguments]
    module, function = target.split(":")
    code = 1
    try:
        code = getattr(importlib.import_module(module), function)() or 0
    except BaseException as error:
        sys.last_value = error
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
