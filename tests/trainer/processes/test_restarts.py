"""`t2tp_launch` restarts commands that end at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from t2tp.processes.rendezvous import free_port
from tests.patience import PATIENCE

LAUNCH = [sys.executable, "-m", "t2tp.trainer.cli", "t2tp_launch"]
# What a command knows: its task, the number of tasks, and how often it has been started.
_PRELUDE = """
import json, os, signal, sys, time
from pathlib import Path
config = json.loads(os.environ["TF_CONFIG"])
task, size = config["task"]["index"], len(config["cluster"]["worker"])
starts = Path({starts!r}, str(task))
starts.write_text(starts.read_text() + "." if starts.exists() else ".")
number = len(starts.read_text())
print("round", number, "process", task, "of", size, flush=True)
"""


@pytest.fixture
def python(tmp_path: Path):
    """Returns a function that makes a command of Python code, which may use names of `_PRELUDE`."""
    prelude = _PRELUDE.format(starts=str(tmp_path))
    return lambda text: [sys.executable, "-c", f"{prelude}{text}"]


def test_all_processes_are_restarted_after_a_failure(launch, python):
    # The surviving process exits like a training that has lost another process.
    text = "if number == 1: os.kill(os.getpid(), 9) if task else sys.exit(3)"
    code, out, err = launch("-n", "2", "--max_restarts=1", *python(text))
    assert code == 0
    assert sorted(out) == [
        f"[{task}] round {number} process {task} of 2" for task in (0, 1) for number in (1, 2)
    ]
    assert len(err) == 1 and "process 1 was killed by signal 9: restart 1 of 1" in err[0]


def test_one_failure_too_many_ends_the_run_with_its_code(launch, python):
    code, out, err = launch("-n", "1", "--max_restarts=1", *python("sys.exit(number + 4)"))
    assert (code, len(out)) == (6, 2)
    assert "process 0 failed with exit code 6" in err[-1]


@pytest.mark.parametrize("code", [2, 127, 130, 143])
def test_wrong_requests_and_signals_are_not_restarted(launch, python, code):
    assert launch("-n", "1", "--max_restarts=9", *python(f"sys.exit({code})"))[0] == code


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_processes_and_ends_the_run(python, number):
    polite = f"signal.signal({int(number)}, lambda *_: sys.exit(13))\n"
    # Python calls a handler between two operations. If a signal arrived just before a long sleep,
    # the handler would run after the sleep.
    command = python(f"{polite}print('ready', flush=True)\nfor _ in range(600): time.sleep(0.1)")
    with subprocess.Popen(
        [*LAUNCH, "-n", "2", "--max_restarts=9", *command], stdout=subprocess.PIPE, text=True
    ) as launcher:
        said = sorted(launcher.stdout.readline() for _ in range(4))
        assert said[0] == "[0] ready\n" and said[2] == "[1] ready\n"
        os.kill(launcher.pid, number)
        assert launcher.wait(timeout=PATIENCE) == 13


def test_hosts_restart_together(python, tmp_path):
    """Two launchers on one machine: a process of host 1 dies, and host 0's process notices it."""
    dies = "if number == 1 and task == 2: os.kill(os.getpid(), 9)\n"
    notices = (
        f"while number == 1 and not Path({str(tmp_path)!r}, '2').exists(): time.sleep(0.02)\n"
        "if number == 1: sys.exit(3)\n"
        "print(config['cluster']['worker'])"
    )
    port = free_port()
    hosts = f"127.0.0.1:{port},localhost:{port + 2}"
    restart = ["--max_restarts=1", *python(dies + notices)]
    launchers = [
        subprocess.Popen(
            [*LAUNCH, "-n", "2", f"--hosts={hosts}", f"--host_id={host}", *restart],
            stdout=subprocess.PIPE,
            text=True,
        )
        for host in range(2)
    ]
    said = [launcher.communicate()[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0]
    addresses = [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
    addresses += [f"localhost:{port + 2}", f"localhost:{port + 3}"]
    for task in range(4):
        assert f"[{task}] {addresses}" in said[task // 2]
