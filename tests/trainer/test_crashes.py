"""Kills the program while it trains, starts it again, compares with an undisturbed run."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.conftest import PROBLEM
from tests.trainer.events import read_scalars

pytestmark = pytest.mark.slow

STEPS = 120
ROOT = Path(__file__).parents[2]


def start(folder: Path, data_dir: Path, mesh_shape: str = "data:2;model:2") -> subprocess.Popen:
    """Starts the program, always with the same command."""
    flags = {
        "problem": PROBLEM,
        "model": "transformer_lm",
        "hparams_set": "transformer_lm_test",
        "hparams": "layer_prepostprocess_dropout=0.1",
        "data_dir": data_dir,
        "output_dir": folder,
        "mesh_shape": mesh_shape,
        "schedule": "train",
        "train_steps": STEPS,
        "save_checkpoints_steps": 10,
        "log_step_count_steps": 1,
        "random_seed": 3,
    }
    command = [sys.executable, "-m", "tests.trainer.tiny_problem"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> str:
    """Waits for the end of a program that must succeed; returns what it said."""
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 0, said
    return said


def stop_at(process: subprocess.Popen, step: int, by: signal.Signals) -> str:
    """Sends a signal soon after the program has reported a step; returns what it said."""
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith(f"step {step}/"):
            time.sleep(random.uniform(0, 0.05))
            os.kill(process.pid, by)
            break
    else:
        pytest.fail(f"never came to step {step}:\n{said}")
    return said + process.communicate(timeout=300)[1]


def losses(folder: Path) -> np.ndarray:
    """The loss of each step."""
    by_step = read_scalars(folder)["loss"]
    assert sorted(by_step) == list(range(1, STEPS + 1))
    return np.array([by_step[step] for step in sorted(by_step)], np.float32)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> np.ndarray:
    """The losses of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(start(folder, data_dir))
    return losses(folder)


def test_killed_at_any_moment_it_goes_on_bit_for_bit(tmp_path, data_dir, undisturbed):
    step = random.randrange(11, STEPS - 20)
    killed = start(tmp_path / "killed", data_dir)
    stop_at(killed, step, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    shutil.copytree(tmp_path / "killed", tmp_path / "moved")

    said = finish(start(tmp_path / "killed", data_dir))
    begun_at = int(re.search(r"going on from the checkpoint of step (\d+)", said)[1])
    assert step - 10 <= begun_at < STEPS
    np.testing.assert_array_equal(losses(tmp_path / "killed"), undisturbed, f"killed at {step}")

    said = finish(start(tmp_path / "moved", data_dir, "model:4"))
    assert "going on from the checkpoint of step" in said
    np.testing.assert_allclose(losses(tmp_path / "moved"), undisturbed, rtol=1e-5)


def test_interrupted_it_saves_leaves_and_goes_on(tmp_path, data_dir, undisturbed):
    process = start(tmp_path, data_dir)
    said = stop_at(process, random.randrange(5, STEPS - 20), signal.SIGINT)
    assert process.returncode == 130
    assert "Traceback" not in said
    step = int(re.search(r"t2tp_trainer: interrupted after step (\d+), which is saved", said)[1])
    assert f"going on from the checkpoint of step {step}" in finish(start(tmp_path, data_dir))
    np.testing.assert_array_equal(losses(tmp_path), undisturbed)
