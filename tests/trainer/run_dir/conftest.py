"""A run of the toy model that tests damage or resume, and a store."""

import shutil
from pathlib import Path

import pytest

from tests.store_server import _server, server  # noqa: F401


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """Copies `trained_run` to a directory that a test may change."""
    return Path(shutil.copytree(trained_run, tmp_path / "run"))
