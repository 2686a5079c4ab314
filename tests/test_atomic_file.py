"""Files that are whole under their name, and what is left of those that never were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from t2tp.atomic_file import is_unfinished, remove_unfinished, write_text
from tests.killed import killed_before_renaming


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A directory in which a process was killed while it replaced a file."""
    write_text(tmp_path / "state.json", "old")
    killed_before_renaming(lambda: write_text(tmp_path / "state.json", "new"))
    return tmp_path


def test_what_a_killed_writer_leaves_is_known_by_its_name_and_removed(killed):
    assert (killed / "state.json").read_text() == "old"
    (left,) = set(killed.iterdir()) - {killed / "state.json"}
    assert is_unfinished(left)
    assert remove_unfinished(killed) == [left]
    assert os.listdir(killed) == ["state.json"]


def test_what_may_be_another_processs_stays(killed):
    assert remove_unfinished(killed, min_age_seconds=60.0) == []
    assert len(os.listdir(killed)) == 2


def test_other_names_and_directories_stay(tmp_path):
    names = ["a.tmp", "a.tmp-", "a.tmp-1b", ".tmp-1", "tmp-1", "step-00000001.tmp"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "directory.tmp-1").mkdir()
    assert remove_unfinished(tmp_path) == []
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "directory.tmp-1"])
    assert remove_unfinished(tmp_path / "nowhere") == []
