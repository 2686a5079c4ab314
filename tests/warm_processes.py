"""Processes that start in a moment: forked from one that has imported TensorFlow, not started it.

To import TensorFlow takes seconds, and tests of several processes start dozens. What is forked is a
process like any other: with its own number, environment, signals, output, exit code and death.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

from t2tp.processes.rendezvous import free_port
from tests.patience import PATIENCE

_PRELOADED = ["tests.processes.one_process", "tests.trainer.tiny_problem", "t2tp.trainer.cli.train"]
_LOOK_SECONDS = 0.02

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(_PRELOADED)


class WarmProcess:
    """A process that runs a function without arguments.

    Attributes:
      out: the file that it writes its standard output to.
      err: the same for its errors.
    """

    def __init__(
        self,
        target: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        out_dir: Path,
        directory: Path | None = None,
    ) -> None:
        """Starts it.

        Args:
          target: `module:function`; what it returns is the exit code, None is 0.
          arguments: of the command line.
          environment: what is different from this process's.
          directory: empty, gets its output.
          directory: in which it works; by default, this process's.
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
        """Sends it a signal."""
        os.kill(self._process.pid, number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Waits for its end; returns the exit code, -n if signal n ended it.

        Raises:
          TimeoutError: it goes on; says what it has said.
        """
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise TimeoutError(f"it did not end in {seconds} s:\n{self.err.read_text()}")
        return self._process.exitcode

    def wait_for_line(self, beginning: str, seconds: float = PATIENCE) -> str:
        """Waits for a line on stderr that begins so; returns what was written there so far.

        Raises:
          TimeoutError: it did not come; says what did.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.is_alive():
            said = self.err.read_text() if self.err.exists() else ""
            if f"\n{beginning}" in f"\n{said}":
                return said
            time.sleep(_LOOK_SECONDS)
        raise TimeoutError(f"it never said {beginning!r}:\n{self.err.read_text()}")


@contextlib.contextmanager
def started(
    target: str,
    arguments: Sequence[Sequence[str]],
    environments: Sequence[Mapping[str, str]],
    out_dir: Path,
) -> Iterator[list[WarmProcess]]:
    """Several of them; killed at the end if they have not ended."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(WarmProcess(target, own, environment, out_dir / str(number)))
            for number, (own, environment) in enumerate(zip(arguments, environments, strict=True))
        ]


def printed(
    target: str,
    arguments: Sequence[Sequence[str]],
    environments: Sequence[Mapping[str, str]],
    out_dir: Path,
    seconds: float = 120,
) -> list[str]:
    """Runs several of them, which have to succeed; returns the last line that each printed."""
    with started(target, arguments, environments, out_dir) as processes:
        for process in processes:
            assert process.wait(seconds) == 0, process.err.read_text()
    return [process.out.read_text().splitlines()[-1] for process in processes]


def tf_configs(number: int) -> list[dict[str, str]]:
    """The environments of processes that share a mesh."""
    cluster = {"worker": [f"localhost:{free_port()}" for _ in range(number)]}
    tasks = [{"type": "worker", "index": i} for i in range(number)]
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


def start(function: Callable[..., object], *arguments: object) -> BaseProcess:
    """Starts a process that calls a function of a module."""
    _start_server()
    process = _context.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def _start_server() -> None:
    """Starts the process to fork from; it keeps the log level that it has when it imports."""
    level = os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["TF_CPP_MIN_LOG_LEVEL"]
        if level is not None:
            os.environ["TF_CPP_MIN_LOG_LEVEL"] = level


def _run(
    target: str,
    arguments: list[str],
    environment: dict[str, str],
    out: Path,
    err: Path,
    directory: Path | None,
) -> None:
    """What the interpreter does with a program, from its beginning to its end."""
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
