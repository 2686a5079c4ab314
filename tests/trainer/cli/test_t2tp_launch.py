"""The launcher, with commands that take no time."""

import json
import os
import signal
import subprocess
import sys

import pytest

from t2tp.trainer.cli.launch import run_rounds
from t2tp.trainer.processes import children
from t2tp.trainer.processes.local_processes import ALLOCATOR, LocalProcesses, environments_of
from tests.patience import PATIENCE, wait_until

COMMAND = [sys.executable, "-m", "t2tp.trainer.cli", "t2tp_launch"]


def python(text: str) -> list[str]:
    """Returns a command that runs Python code, in which `task` is the number of the process."""
    prelude = "import json, os, sys, time; task = json.loads(os.environ['TF_CONFIG'])['task'];"
    return [sys.executable, "-c", f"{prelude} task = task['index']\n{text}"]


def test_output_is_marked_with_the_number_of_the_process(launch):
    text = "print('out', task); print('err', task, file=sys.stderr)"
    code, out, err = launch("-n", "3", *python(text))
    assert code == 0
    assert sorted(out) == [f"[{i}] out {i}" for i in range(3)]
    assert sorted(err) == [f"[{i}] err {i}" for i in range(3)]


def test_flags_after_the_command_are_the_commands(launch):
    command = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "-n", "7", "--help"]
    for written in (["-n", "1"], ["--num_processes=1"], ["-n=1", "--"]):
        assert launch(*written, *command)[1] == ["[0] ['-n', '7', '--help']"]


def test_the_exit_code_is_that_of_the_first_that_failed(launch):
    text = "time.sleep(0.2 * task); sys.exit([0, 5, 6][task])"
    assert launch("-n", "3", *python(text))[0] == 5
    assert launch("-n", "2", *python("os.kill(os.getpid(), 9 if task else 0)"))[0] == 137


def test_when_one_dies_the_others_are_ended():
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    command = python(f"{deaf}\nif task == 1: sys.exit(9)\ntime.sleep(6000)")
    before = [signal.getsignal(number) for number in children.stop_signals()]
    local = LocalProcesses(ending_seconds=0.5, kill_seconds=0.5)
    assert run_rounds(command, lambda: environments_of(3, None, {}, []), local=local) == 9
    assert [process.returncode for process in local.processes] == [-9, 9, -9]
    assert [signal.getsignal(number) for number in children.stop_signals()] == before


def test_a_command_that_does_not_exist_and_wrong_numbers_are_refused(launch):
    said = "t2tp_launch: no-such-command: No such file or directory"
    assert launch("-n", "2", "no-such-command") == (127, [], [said])
    code, _, (said,) = launch("-n", "0", "true")
    assert code == 2 and "--num_processes=0" in said


def values_of(variable, number, environment, gpus=(), each=None):
    """Returns the values of an environment variable in a number of processes."""
    environments = environments_of(number, each, environment, list(gpus))
    return [own.get(variable) for own in environments]


def test_gpus_are_dealt_out():
    def visible(number, each, gpus):
        return values_of("CUDA_VISIBLE_DEVICES", number, {}, gpus, each)

    assert visible(2, None, ["0", "1", "2", "3"]) == ["0,1", "2,3"]
    assert visible(2, 1, ["4", "5", "6"]) == ["4", "5"]
    assert visible(2, None, []) == [None, None]
    with pytest.raises(ValueError, match="2 processes with 2 GPUs each need 4, and there are 3"):
        environments_of(2, 2, {}, ["0", "1", "2"])
    with pytest.raises(ValueError, match="4 processes with 1 GPUs each need 4, and there are 2"):
        environments_of(4, None, {}, ["0", "1"])


def test_each_process_is_told_who_it_is():
    first, second = environments_of(2, 3, {"A": "b"}, [])
    assert first["A"] == "b" and first["T2TP_DEVICES_PER_PROCESS"] == "3"
    config = json.loads(second["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 1}
    assert len(set(config["cluster"]["worker"])) == 2
    assert json.loads(first["TF_CONFIG"])["cluster"] == config["cluster"]


def test_the_processes_share_the_cores():
    threads, half = "TF_NUM_INTRAOP_THREADS", max(1, len(os.sched_getaffinity(0)) // 2)
    assert values_of(threads, 2, {}) == [str(half)] * 2
    assert values_of(threads, 2, {threads: "7"}) == ["7"] * 2


def test_the_heap_is_configured_on_cpus_unless_the_environment_does():
    def configured(environment: dict[str, str], gpus: list[str]) -> dict[str, str]:
        (own,) = environments_of(1, None, environment, gpus)
        return {name: value for name, value in own.items() if name in {*ALLOCATOR, *environment}}

    assert configured({}, []) == ALLOCATOR
    for own in ({"MALLOC_PERTURB_": "1"}, {"GLIBC_TUNABLES": "glibc.malloc.perturb=1"}):
        assert configured(own, []) == own
    assert not configured({}, ["0"])


def test_when_the_launcher_is_killed_its_processes_are_told_to_end_once(tmp_path):
    text = (
        "import pathlib, signal\n"
        f"path = pathlib.Path({str(tmp_path)!r}, str(task))\n"
        "signal.signal(signal.SIGTERM, lambda *_: path.open('a').write('told'))\n"
        "print('ready', flush=True); time.sleep(1.0); path.open('a').write(' and ended')"
    )
    command = [*COMMAND, "-n", "4", *python(text)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        for _ in range(4):
            launcher.stdout.readline()
        launcher.kill()
        launcher.wait(timeout=PATIENCE)
        told = 4 * ["told and ended"]
        wait_until(lambda: [path.read_text() for path in tmp_path.iterdir()] == told)


def test_the_processes_share_a_secret_that_nobody_knows():
    (first,), (second,) = (set(values_of("T2TP_SECRET", 3, {})) for _ in range(2))
    assert first != second and len(first) == 32
    assert values_of("T2TP_SECRET", 2, {"T2TP_SECRET": "of the user"}) == ["of the user"] * 2


def test_a_sentence_that_all_processes_end_with_is_shown_once(launch):
    said = "print(f't2tp_trainer: process {task} of 3: no such model', file=sys.stderr)"
    own = "print(f't2tp_trainer: process {task} of 3: no disk {task}', file=sys.stderr)"
    _, _, err = launch("-n", "3", *python(f"{said}\n{own}"))
    shown = [line.partition("] ")[2] for line in err]
    assert len([line for line in shown if line.endswith("no such model")]) == 1
    assert sorted(line for line in shown if "disk" in line) == [
        f"t2tp_trainer: process {task} of 3: no disk {task}" for task in range(3)
    ]
