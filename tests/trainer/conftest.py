"""Fixtures: the data of the tiny problem, trained runs, databases and programs."""

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from t2tp import registry
from t2tp.trainer.cli.programs import t2tp_launch
from t2tp.trainer.run_dir import run_files
from t2tp.trainer.search.study import sqlite_address
from tests.trainer import (
    postgresql,
    tiny_problem,  # noqa: F401 (registers problems)
    toy,
)
from tests.trainer.command import call
from tests.trainer.toy_estimator import estimator

PROBLEM = "languagemodel_encodings"
NEW = {"problem": PROBLEM, "model": "transformer_lm", "hparams_set": "transformer_lm_test"}


def set_flags(run: Path, **flags: object) -> None:
    """Changes flags in a run's file."""
    saved = run_files.read(run)
    run_files.write(run, saved.hparams, saved.flags | flags)


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains the toy model for ten steps, and saves the steps 4, 8 and 10.

    Tests must not change the returned directory.
    """
    directory = tmp_path_factory.mktemp("toy") / "run"
    estimator(directory).train(toy.inputs(), 10)
    return directory


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes the data of the tiny problem, and returns their directory."""
    directory = tmp_path_factory.mktemp("data")
    registry.problem(PROBLEM)().prepare(directory)
    return directory


@pytest.fixture(scope="session")
def _trained(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    flags = {**NEW, "data_dir": data_dir, "output_dir": run, "schedule": "train"}
    flags |= {"train_steps": 2, "save_checkpoints_steps": 1, "random_seed": 5, "hparams": "d_ff=64"}
    assert call("t2tp_trainer", **flags) == 0
    return run


@pytest.fixture
def trained(tmp_path: Path, _trained: Path) -> Path:
    """Copies a run of two steps to the `output_dir` of `trainer`.

    The run has a checkpoint of each step. Its seed is 5, and its d_ff is 64, which is not the value
    of its hparams set.
    """
    return shutil.copytree(_trained, tmp_path / "run")


@pytest.fixture(scope="session")
def _postgresql_server() -> Iterator[Path]:
    if postgresql.missing():
        pytest.skip(postgresql.missing())
    with postgresql.server() as directory:
        yield directory


@pytest.fixture(params=["sqlite", "postgresql"])
def study_address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Returns the address of a new study; a test runs with each kind of database."""
    if request.param == "postgresql":
        directory = request.getfixturevalue("_postgresql_server")
        return postgresql.new_database(directory, uuid.uuid4().hex)
    # A path with characters that mean something in a URL.
    return sqlite_address(tmp_path / "a ?#%[1] study.db")


@pytest.fixture
def trainer(tmp_path: Path, data_dir: Path) -> Callable[..., int]:
    """Returns a function that runs `t2tp_trainer` in this process.

    It is given flags by name, and returns the exit code. A flag of None is omitted.
    """
    defaults = {**NEW, "data_dir": data_dir, "output_dir": tmp_path / "run", "train_steps": 6}

    def run(**flags: object) -> int:
        schedule = str(flags.get("schedule", "train_and_evaluate"))
        more = {"log_step_count_steps": 1} if schedule.startswith("train") else {}
        more |= {"eval_steps": 2} if "evaluate" in schedule else {}
        return call("t2tp_trainer", **{**defaults, **more, **flags})

    return run


@pytest.fixture
def launch(capsys):
    """Returns a function that runs `t2tp_launch` in this process.

    It returns the exit code, the lines on stdout and the lines on stderr.
    """

    def run(*arguments: str) -> tuple[int, list[str], list[str]]:
        code = t2tp_launch(["t2tp_launch", *arguments])
        shown = capsys.readouterr()
        return code, shown.out.splitlines(), shown.err.splitlines()

    return run
