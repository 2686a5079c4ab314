"""The trainer in several processes: its numbers, its output, and the end of one process.

Each process takes seconds to start, so a test checks everything that its processes print.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from t2tp import registry
from t2tp.checkpoint import all_steps, last_finished
from t2tp.processes.rendezvous import free_port
from t2tp.trainer.cli.programs import t2tp_trainer as main
from t2tp.trainer.processes.local_processes import environments_of
from tests.trainer import small_run
from tests.trainer.conftest import PROBLEM
from tests.trainer.hooks.events import read_scalars
from tests.warm_processes import ended, started

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
# The program sets TensorFlow's log level itself.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
STEPS = 40


def flags(output_dir: Path, data_dir: Path, /, **changes: object) -> list[str]:
    """Returns the flags of all runs."""
    training = {
        "schedule": "train_and_evaluate",
        "eval_steps": 3,
        "local_eval_frequency": STEPS // 2,
        "save_checkpoints_steps": 5,
        "keep_checkpoint_max": 3,
    }
    given = changes if "schedule" in changes else training | changes
    return small_run.flags(output_dir, data_dir, **{"train_steps": STEPS, **given})


def launch(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Runs two processes by `t2tp_launch`, which must succeed; returns the lines they print."""
    launcher = [sys.executable, "-m", "t2tp.trainer.cli", "t2tp_launch", "-n", "2"]
    done = subprocess.run(
        [*launcher, sys.executable, "-m", "tests.trainer.run_dir.noting_reads", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


@pytest.fixture
def start(tmp_path: Path):
    """Returns a function that starts a process for each command line, by default with TF_CONFIG."""
    numbers = itertools.count()

    def run(arguments: list[list[str]], environments: list[dict] | None = None):
        if environments is None:
            environments = environments_of(len(arguments), None, {}, [])
        directory = tmp_path / f"said-{next(numbers)}"
        return started("t2tp.trainer.cli.programs:t2tp_trainer", arguments, environments, directory)

    return run


def losses(directory: Path) -> np.ndarray:
    """Returns the loss of each step."""
    by_step = read_scalars(directory)["loss"]
    assert sorted(by_step) == list(range(1, STEPS + 1))
    return np.array([by_step[step] for step in sorted(by_step)], np.float32)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Path:
    """Trains a run of one process with all four devices, and returns its directory."""
    directory = tmp_path_factory.mktemp("alone")
    assert main(["t2tp_trainer", *flags(directory, data_dir)]) == 0
    return directory


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str], list[str]]:
    """Trains a run of two processes with two devices each; returns its directories and output."""
    directory, made = tmp_path_factory.mktemp("two"), tmp_path_factory.mktemp("made")
    noted = {"problem": f"{PROBLEM}_noted", "generate_data": True}
    return directory, made, *launch(flags(directory, made, **noted))


def assert_same_run(directory: Path, alone: Path) -> None:
    """Compares losses and metrics; sums over several processes may have another order."""
    np.testing.assert_allclose(losses(directory), losses(alone), rtol=1e-6)
    metrics, wanted = read_scalars(directory / "eval"), read_scalars(alone / "eval")
    assert set(wanted["bits_per_byte"]) == {STEPS // 2, STEPS}
    for name in wanted:
        assert metrics[name] == pytest.approx(wanted[name], rel=1e-6)


def test_two_processes_of_two_devices_do_what_one_does(two, alone):
    directory, made, _, _ = two
    assert_same_run(directory, alone)
    assert sorted(os.listdir(made)) == [f".{PROBLEM}.lock", PROBLEM]
    assert all_steps(directory / "checkpoints") == [STEPS - 10, STEPS - 5, STEPS]


def test_process_0_alone_speaks_and_writes(two):
    directory, _, _, stderr = two
    assert not [line for line in stderr if not line.startswith("[0] ")]
    for wanted in ("making the data", "processor 3: ", f"step {STEPS}/{STEPS}  loss "):
        assert sum(line.startswith(f"[0] {wanted}") for line in stderr) == 1
    assert len(list(directory.glob("events*"))) == 1
    assert sorted(os.listdir(directory))[:2] == ["checkpoints", "eval"]
    assert "run.yaml" in os.listdir(directory)


def test_each_process_reads_only_its_rows(two):
    _, made, stdout, _ = two
    hparams = registry.hparams("transformer_lm_test")
    problem = registry.problem(PROBLEM)()
    stream = problem.stream(made, "train", hparams.batch_size, hparams.max_length, seed=3)
    for process_id in range(2):
        (line,) = [line for line in stdout if line.startswith(f"[{process_id}] [[")]
        mine = slice(4 * process_id, 4 * process_id + 4)
        wanted = [stream[step].examples[mine].tolist() for step in range(STEPS)]
        assert json.loads(line.partition(" ")[2]) == wanted


@pytest.mark.ci_only
def test_a_signal_to_one_stops_all_after_a_step_and_they_go_on_bit_for_bit(start, two, tmp_path):
    undisturbed, made, _, _ = two
    run = tmp_path / "run"
    arguments = [flags(run, made)] * 2
    with start(arguments) as (first, second):
        first.wait_for_line("step 6/")
        second.signal(signal.SIGTERM)
        assert [process.wait() for process in (first, second)] == [143, 143]
        stopped = r"t2tp_trainer: interrupted after step (\d+), which is saved\n$"
        step = int(re.search(stopped, first.err.read_text())[1])
        assert second.err.read_text() == ""
    assert last_finished(run / "checkpoints").step == step < STEPS

    (said, _) = ended(start(arguments), [0, 0])
    assert f"resuming from the checkpoint of step {step}\n" in said
    np.testing.assert_array_equal(losses(run), losses(undisturbed))


def test_a_signal_to_all_stops_all(start, data_dir, tmp_path):
    with start([flags(tmp_path / "run", data_dir)] * 2) as processes:
        processes[0].wait_for_line("step 6/")
        for process in processes:
            process.signal(signal.SIGINT)
        assert [process.wait() for process in processes] == [130, 130]
        assert "Traceback" not in processes[0].err.read_text()
        assert processes[1].err.read_text() == ""
    assert 6 <= last_finished(tmp_path / "run/checkpoints").step < STEPS


def by_flags(own_flags: list[dict], output_dir: Path, data_dir: Path) -> list[list[str]]:
    """Returns command lines whose flags give each process its number."""
    place = {"num_processes": len(own_flags), "coordinator": f"localhost:{free_port()}"}
    own_flags = [{**place, "process_id": i, **own} for i, own in enumerate(own_flags)]
    return [flags(output_dir, data_dir, **own) for own in own_flags]


def test_processes_started_for_something_else_are_refused_by_all(start, tmp_path, data_dir):
    own = [{}, {"train_steps": 7, "hparams": "d_ff=64"}]
    said = ended(start(by_flags(own, tmp_path / "run", data_dir), [{}, {}]), [2, 2])
    for process_id, line in enumerate(said):
        assert line.startswith(f"t2tp_trainer: process {process_id} of 2: process 1 has d_ff=64")
    assert not (tmp_path / "run").exists()


def test_what_is_wrong_in_one_process_is_told_by_all(start, tmp_path, data_dir):
    own = [{}, {"data_dir": tmp_path / "none"}]
    said = ended(start(by_flags(own, tmp_path / "run", data_dir), [{}, {}]), [3, 2])
    missing = f"{tmp_path / 'none' / PROBLEM} does not exist"
    assert said[1].startswith(f"t2tp_trainer: process 1 of 2: {missing}")
    assert said[0].startswith("t2tp_trainer: process 0 of 2: Process 1 of 2 (")
    assert f"failed: UsageError: {missing}" in said[0]
    assert len(said[0].splitlines()) == 1
    assert not (tmp_path / "run").exists()
