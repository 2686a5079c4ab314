"""Restarts, on one host and on several, of commands that take no time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from t2tp.trainer.cli.programs import t2tp_launch as main
from tests.trainer.processes.launchers import LAUNCH, PATIENCE, POLITE, ROOT, launchers, python


@pytest.fixture
def launch(capsys):
    """`t2tp_launch` in this process: (exit code, lines on stdout, lines on stderr)."""

    def run(*arguments: str) -> tuple[int, list[str], list[str]]:
        code = main(["t2tp_launch", *arguments])
        shown = capsys.readouterr()
        return code, shown.out.splitlines(), shown.err.splitlines()

    return run


def eventually(is_so: Callable[[], bool]) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def test_after_a_failure_all_processes_are_started_again(launch):
    text = "if number == 1 and task: os.kill(os.getpid(), 9)\nif number == 1: time.sleep(60)"
    code, out, err = launch("-n", "2", "--max_restarts=1", *python(text))
    assert code == 0
    assert sorted(out) == [
        f"[{task}] round {number} process {task} of 2" for task in (0, 1) for number in (1, 2)
    ]
    assert err == [
        "t2tp_launch: process 1 was killed by signal 9: restart 1 of 1.",
        "t2tp_launch: round 2: 2 of 2 processes, from the last checkpoint.",
    ]


def test_one_failure_too_many_ends_the_run_with_its_code(launch):
    code, out, err = launch("-n", "1", "--max_restarts=1", *python("sys.exit(number + 4)"))
    assert (code, len(out)) == (6, 2)
    assert err[-1] == (
        "t2tp_launch: process 0 failed with exit code 6, after 1 restarts: the run ends."
    )


@pytest.mark.slow
def test_the_process_that_is_to_blame_counts_and_not_who_missed_it(launch):
    text = (
        "time.sleep(0.4 * task)\n"
        "if task: print('KeyError: 5', file=sys.stderr)\n"
        "sys.exit(3 - 2 * task)"
    )
    code, _, err = launch("-n", "2", "--max_restarts=9", *python(text))
    assert code == 1
    assert "process 1 failed with exit code 1, for the 3rd time" in err[-1]
    assert len([line for line in err if "KeyError" in line]) == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run(number, code):
    polite = f"signal.signal(signal.{number.name}, lambda *_: sys.exit({code}))\n"
    command = python(f"{polite}print('ready', flush=True)\ntime.sleep(60)")
    with subprocess.Popen(
        [*LAUNCH, "-n", "1", "--max_restarts=9", *command],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as launcher:
        assert launcher.stdout.readline() and launcher.stdout.readline() == "[0] ready\n"
        os.kill(launcher.pid, number)
        assert launcher.wait(30) == code


def test_another_mesh_is_given_to_the_command(launch):
    text = "print(sys.argv[1:])"
    code, out, _ = launch("-n", "2", "--meshes=data:4 | data:2", *python(text), "--a=b")
    assert code == 0
    assert out.count("[0] ['--a=b', '--mesh_shape=data:4']") == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--hosts=a:1,b:1"], "T2TP_SECRET"),
        (["--hosts=127.0.0.1:1,127.0.0.1:2"], "--host_id is missing"),
        (["--meshes=data:3"], "cannot share"),
    ],
)
def test_wrong_flags_are_refused(launch, monkeypatch, flags, said):
    for name in ("T2TP_SECRET", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    if "SECRET" in said:
        flags = [*flags, "--host_id=0"]
    code, _, err = launch("-n", "2", *flags, "true")
    assert code == 2 and said in err[0] and len(err) == 1


@pytest.mark.slow
def test_a_leader_is_lost_and_comes_back(tmp_path: Path):
    """Hosts 1 and 2 go on without host 0, and with it when it is back."""
    done = tmp_path / "done"
    text = f"{POLITE}while not os.path.exists({str(done)!r}): time.sleep(0.05)"
    with launchers(3, tmp_path, "--max_restarts=5", *python(text)) as hosts:
        eventually(lambda: all("of 3" in hosts.said(host) for host in range(3)))
        hosts.lose(0)
        eventually(lambda: "round 2 process 0 of 1" in hosts.said(1))
        eventually(lambda: "host 0, which led, is lost: restart 1 of 5" in hosts.said(2))
        hosts.start(0)
        eventually(lambda: all("round 3 process" in hosts.said(host) for host in range(3)))
        assert "a host is back" in hosts.said(1)
        assert "host 1, which led" not in hosts.said(2)  # It has not lost its place.
        done.touch()
        assert hosts.wait() == {0: 0, 1: 0, 2: 0}
