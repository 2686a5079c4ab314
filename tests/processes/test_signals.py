"""SIGTERM ends a program of several processes in each of its phases; nobody is left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from t2tp.processes.process_spec import LOST_EXIT_CODE
from tests.patience import PATIENCE, wait_until
from tests.warm_processes import tf_configs

LAUNCH = [sys.executable, "-m", "t2tp.trainer.cli", "t2tp_launch"]
# Phase -> number of processes that are in it at the same time.
PHASES = {"joining": 2, "starting": 1, "connected": 2, "stepping": 2}


@contextlib.contextmanager
def launched(*command: str) -> Iterator[subprocess.Popen]:
    """Runs a launcher whose processes have its environment variable MARK."""
    environment = {**os.environ, "MARK": f"test-{os.getpid()}-{time.monotonic_ns()}"}
    process = subprocess.Popen(
        [*LAUNCH, *command], env=environment, stdout=subprocess.PIPE, text=True
    )
    process.mark = environment["MARK"]
    try:
        yield process
    finally:
        for pid in marked(process.mark):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def marked(mark: str) -> list[int]:
    """Returns the ids of the processes whose environment has the mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"MARK={mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_sigterm_ends_a_program_in_each_phase(phase):
    with launched("-n", "2", sys.executable, "-m", "tests.processes.phases", phase) as launcher:
        shown = []
        while sum("there" in line for line in shown) < PHASES[phase]:
            shown.append(launcher.stdout.readline())
            assert shown[-1], shown
        launcher.terminate()
        assert launcher.wait(PATIENCE) == 128 + signal.SIGTERM
        wait_until(lambda: not marked(launcher.mark))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_ended_while_tensorflow_starts_ends_the_other(victim, number):
    """Without a launcher; the other process is inside TensorFlow and would wait forever."""
    with contextlib.ExitStack() as stack:
        processes = []
        for environment in tf_configs(2):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.processes.phases", "starting"],
                env={**os.environ, **environment},
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        while "there" not in processes[1].stdout.readline():
            assert processes[1].poll() is None
        processes[victim].send_signal(number)
        assert processes[1 - victim].wait(PATIENCE) == LOST_EXIT_CODE


@pytest.mark.slow
def test_sigint_during_the_imports_is_not_lost():
    code = """
import signal, time
from t2tp.processes.signals import sigint_ends
def swallowed(*_):
    try:
        print("there", flush=True)
        time.sleep(1000)
    except KeyboardInterrupt:
        time.sleep(1000)
with sigint_ends():
    swallowed()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == -signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_launcher_that_is_ended_while_it_starts_processes_leaves_none(number, count):
    """Signals the launcher when its first `count` processes exist, even if none runs Python yet."""
    with launched("-n", "6", sys.executable, "-c", "import time; time.sleep(10**6)") as launcher:
        while len(marked(launcher.mark)) < 1 + count:
            time.sleep(0.001)
        launcher.send_signal(number)
        launcher.wait(PATIENCE)
        wait_until(lambda: not marked(launcher.mark))


def test_exit_codes_are_known_where_sigchld_is_ignored():
    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    command = [*LAUNCH, "-n", "2", sys.executable, "-c", "import sys; sys.exit(7)"]
    assert subprocess.run(command, preexec_fn=ignore).returncode == 7
