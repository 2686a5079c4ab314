import shutil
import threading
from pathlib import Path

import pytest

from t2tp.problems.data.atomic_directory import atomic_directory, exclusive_build, scratch_directory


def contents(directory):
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_a_success_replaces_what_was_there(tmp_path):
    directory = tmp_path / "data"
    for text in ("old", "new"):
        with atomic_directory(directory, "plan") as partial:
            (partial / text).write_text(text)
    assert contents(directory) == {"new": "new"}
    assert list(tmp_path.iterdir()) == [directory]


@pytest.mark.parametrize("failure", [ValueError, OSError, KeyboardInterrupt])
def test_a_failure_leaves_what_was_there(tmp_path, failure):
    directory = tmp_path / "data"
    with atomic_directory(directory, "plan") as partial:
        (partial / "file").write_text("old")
    with pytest.raises(failure), atomic_directory(directory, "plan") as partial:
        (partial / "file").write_text("half")
        raise failure
    assert contents(directory) == {"file": "old"}
    left = [] if failure is ValueError else [tmp_path / ".data.partial"]
    assert sorted(tmp_path.iterdir()) == sorted([directory, *left])


@pytest.mark.parametrize(("plan", "found"), [("plan", {"whole": "x"}), ("another", {})])
def test_the_next_attempt_of_the_same_plan_finds_what_was_made(tmp_path, plan, found):
    with pytest.raises(KeyboardInterrupt), atomic_directory(tmp_path / "data", "plan") as partial:
        (partial / "whole").write_text("x")
        raise KeyboardInterrupt
    with atomic_directory(tmp_path / "data", plan):
        pass
    assert contents(tmp_path / "data") == found


@pytest.mark.parametrize("is_new_there", [True, False])
def test_what_a_killed_maker_put_aside_is_not_lost(tmp_path, monkeypatch, is_new_there):
    directory, partial = tmp_path / "data", tmp_path / ".data.partial"
    with atomic_directory(directory, "plan") as making:
        (making / "file").write_text("old")
    rename = Path.rename

    def killed(path, target):
        if path == partial:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt), atomic_directory(directory, "plan") as making:
        (making / "file").write_text("new")
    monkeypatch.undo()
    assert not directory.exists()
    if not is_new_there:
        shutil.rmtree(partial)
    with exclusive_build(directory):
        assert contents(directory) == {"file": "new" if is_new_there else "old"}


def test_makers_wait_for_each_other(tmp_path):
    directory = tmp_path / "data"
    done = []

    def second():
        with exclusive_build(directory):
            done.append("second")

    with exclusive_build(directory):
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(timeout=0.2)
        done.append("first")
    waiting.join()
    assert done == ["first", "second"]


def test_a_given_scratch_directory_stays_and_another_does_not(tmp_path):
    with scratch_directory(tmp_path, tmp_path / "mine") as scratch:
        (scratch / "download").write_text("x")
    assert contents(tmp_path / "mine") == {"download": "x"}
    with scratch_directory(tmp_path, None) as scratch:
        (scratch / "download").write_text("x")
    assert not scratch.exists()
