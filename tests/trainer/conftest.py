"""The data of the tiny problem, and what leaves no trace in other tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from t2tp import registry
from t2tp.trainer.t2tp_trainer import main
from tests.trainer import tiny_problem

PROBLEM = "languagemodel_encodings"
assert tiny_problem  # Importing it registers the problem and its hparams.


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tiny problem's data have been made."""
    folder = tmp_path_factory.mktemp("data")
    registry.problem(PROBLEM)().prepare(folder)
    return folder


@pytest.fixture
def trainer(tmp_path: Path, data_dir: Path) -> Callable[..., int]:
    """`t2tp_trainer` in this process: flags by name -> exit code. A flag of None is left out."""
    defaults = {
        "problem": PROBLEM,
        "model": "transformer_lm",
        "hparams_set": "transformer_lm_test",
        "data_dir": data_dir,
        "output_dir": tmp_path / "run",
        "train_steps": 6,
        "eval_steps": 2,
        "log_step_count_steps": 1,
    }

    def run(**flags: object) -> int:
        given = {k: v for k, v in {**defaults, **flags}.items() if v is not None}
        return main(["t2tp_trainer", *(f"--{name}={value}" for name, value in given.items())])

    return run
