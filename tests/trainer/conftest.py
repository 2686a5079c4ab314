"""The data of the tiny problem, and what leaves no trace in other tests."""

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from t2tp import registry
from t2tp.trainer.cli.programs import t2tp_launch
from t2tp.trainer.run_dir import run_files
from t2tp.trainer.search.storage import sqlite_address
from tests.trainer import (
    postgresql,
    tiny_problem,  # noqa: F401 (registers problems)
)
from tests.trainer.command import call

PROBLEM = "languagemodel_encodings"
NEW = {"problem": PROBLEM, "model": "transformer_lm", "hparams_set": "transformer_lm_test"}


def set_flags(run: Path, **flags: object) -> None:
    """Changes flags in a run's file."""
    saved = run_files.read(run)
    run_files.write(run, saved.hparams, saved.flags | flags)


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tiny problem's data have been made."""
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
    """A run of two steps with a checkpoint of each, where `trainer` has its run: the test's own.

    Its seed is 5, and its d_ff 64, unlike that of its set.
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
    """Address of a new study in each kind of database."""
    if request.param == "postgresql":
        directory = request.getfixturevalue("_postgresql_server")
        return postgresql.new_database(directory, uuid.uuid4().hex)
    # A path with characters that mean something in a URL.
    return sqlite_address(tmp_path / "a ?#%[1] study.db")


@pytest.fixture
def trainer(tmp_path: Path, data_dir: Path) -> Callable[..., int]:
    """`t2tp_trainer` in this process: flags by name -> exit code. A flag of None is left out."""
    defaults = {**NEW, "data_dir": data_dir, "output_dir": tmp_path / "run", "train_steps": 6}

    def run(**flags: object) -> int:
        schedule = str(flags.get("schedule", "train_and_evaluate"))
        more = {"log_step_count_steps": 1} if schedule.startswith("train") else {}
        more |= {"eval_steps": 2} if "evaluate" in schedule else {}
        return call("t2tp_trainer", **{**defaults, **more, **flags})

    return run


@pytest.fixture
def launch(capsys):
    """`t2tp_launch` in this process: (exit code, lines on stdout, lines on stderr)."""

    def run(*arguments: str) -> tuple[int, list[str], list[str]]:
        code = t2tp_launch(["t2tp_launch", *arguments])
        shown = capsys.readouterr()
        return code, shown.out.splitlines(), shown.err.splitlines()

    return run
