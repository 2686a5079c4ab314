"""A run that loses a host goes on with the numbers of one that does not, bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from t2tp.checkpoint import Checkpoint
from t2tp.checkpoint.inspection import differences
from tests.trainer.conftest import PROBLEM
from tests.trainer.hooks.events import read_scalars
from tests.trainer.processes.launchers import PATIENCE, launchers
from tests.warm_processes import WarmProcess

pytestmark = pytest.mark.slow

STEPS = 14
TRAINER = "t2tp.trainer.cli.programs:t2tp_trainer"


def flags(output_dir: Path, data_dir: Path, **more: object) -> list[str]:
    given = {
        "problem": PROBLEM,
        "model": "transformer_lm",
        "hparams_set": "transformer_lm_test",
        "hparams": "layer_prepostprocess_dropout=0.1",
        "mesh_shape": "data:2;model:2",
        "schedule": "train",
        "data_dir": data_dir,
        "output_dir": output_dir,
        "train_steps": STEPS,
        "save_checkpoints_steps": 100,
        "log_step_count_steps": 1,
        **more,
    }
    return [f"--{name}={value}" for name, value in given.items()]


def test_when_a_host_dies_the_other_goes_on_with_all_processors(tmp_path, data_dir, monkeypatch):
    """Two hosts of two processors, one of which dies at step 8: then one host of four.

    It goes on from step 6, which it has in memory, with a copy of the other host's part.
    """
    alone, run = tmp_path / "alone", tmp_path / "run"
    # The order of sums may depend on the threads of an operation, which depend on the machine.
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    monkeypatch.setenv("DIE_AT", "1:8")
    monkeypatch.setenv("WITH", "6")
    trainer = [sys.executable, "-m", "tests.trainer.processes.dying_trainer"]
    command = [*trainer, *flags(run, data_dir, memory_checkpoint_every=3)]
    with (
        WarmProcess(TRAINER, flags(alone, data_dir), {}, tmp_path / "said") as undisturbed,
        launchers(2, tmp_path, "--max_restarts=1", *command) as hosts,
    ):
        assert undisturbed.wait(PATIENCE) == 0, undisturbed.err.read_text()
        codes = hosts.wait()
    said = hosts.said(0)
    assert codes == {0: 0, 1: -9}, said
    # Either the launcher or the process beside the lost one notices first.
    assert "restart 1 of 1" in said
    assert "round 2: 1 of 2 processes on 1 of 2 hosts" in said
    assert "restored step 6 from the memory of the hosts" in said
    assert read_scalars(run)["loss"] == read_scalars(alone)["loss"]
    last = [Checkpoint(each / f"checkpoints/step-{STEPS:08d}") for each in (alone, run)]
    assert differences(*last) == []
