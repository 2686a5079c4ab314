"""A run of the toy model that many tests inspect, damage or resume."""

import shutil
from pathlib import Path

import pytest

from tests.store_server import _server, server  # noqa: F401
from tests.trainer import toy
from tests.trainer.toy_estimator import estimator


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains ten steps, saved at 4, 8 and 10; tests must not change the returned directory."""
    directory = tmp_path_factory.mktemp("toy") / "run"
    estimator(directory).train(toy.inputs(), 10)
    return directory


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """Copies `trained_run` to a directory that a test may change."""
    return Path(shutil.copytree(trained_run, tmp_path / "run"))
