from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from t2tp.problems.publish import new_folder, only_one_maker, scratch_folder


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_the_folder_appears_only_at_the_end(tmp_path):
    folder = tmp_path / "data"
    with new_folder(folder, "plan") as partial:
        (partial / "file").write_text("new")
        assert not folder.exists()
    assert contents(folder) == {"file": "new"}
    assert list(tmp_path.iterdir()) == [folder]


def test_a_success_replaces_what_was_there(tmp_path):
    folder = tmp_path / "data"
    for text in ("old", "new"):
        with new_folder(folder, "plan") as partial:
            (partial / text).write_text(text)
    assert contents(folder) == {"new": "new"}
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("failure", [ValueError, OSError, KeyboardInterrupt])
def test_a_failure_leaves_what_was_there(tmp_path, failure):
    folder = tmp_path / "data"
    with new_folder(folder, "plan") as partial:
        (partial / "file").write_text("old")
    with pytest.raises(failure), new_folder(folder, "plan") as partial:
        (partial / "file").write_text("half")
        raise failure
    assert contents(folder) == {"file": "old"}
    left = [] if failure is ValueError else [tmp_path / ".data.partial"]
    assert sorted(tmp_path.iterdir()) == sorted([folder, *left])


@pytest.mark.parametrize(("plan", "found"), [("plan", {"whole": "x"}), ("another", {})])
def test_the_next_attempt_of_the_same_plan_finds_what_was_made(tmp_path, plan, found):
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "data", "plan") as partial:
        (partial / "whole").write_text("x")
        raise KeyboardInterrupt
    with new_folder(tmp_path / "data", plan):
        pass
    assert contents(tmp_path / "data") == found


KILLED_MAKER = """
import pathlib, sys, time
from t2tp.problems.publish import new_folder, only_one_maker
folder = pathlib.Path(sys.argv[1])
with only_one_maker(folder), new_folder(folder, 'other') as partial:
    (partial / "left").write_text("half")
    print("half done", flush=True)
    time.sleep(60)
"""


def test_a_killed_maker_leaves_nothing_that_counts_and_does_not_block_the_next(tmp_path):
    folder = tmp_path / "data"
    maker = subprocess.Popen(
        [sys.executable, "-c", KILLED_MAKER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert maker.stdout.readline() == "half done\n"
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    assert not folder.exists()
    with only_one_maker(folder), new_folder(folder, "plan") as partial:
        (partial / "file").write_text("new")
    assert contents(folder) == {"file": "new"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".data.lock", "data"]


@pytest.mark.parametrize("is_new_there", [True, False])
def test_what_a_killed_maker_put_aside_is_not_lost(tmp_path, monkeypatch, is_new_there):
    folder, partial = tmp_path / "data", tmp_path / ".data.partial"
    with new_folder(folder, "plan") as making:
        (making / "file").write_text("old")
    rename = Path.rename

    def killed(path, target):
        if path == partial:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt), new_folder(folder, "plan") as making:
        (making / "file").write_text("new")
    monkeypatch.undo()
    assert not folder.exists()
    if not is_new_there:
        shutil.rmtree(partial)
    with only_one_maker(folder):
        assert contents(folder) == {"file": "new" if is_new_there else "old"}


def test_makers_wait_for_each_other(tmp_path):
    folder = tmp_path / "data"
    done = []

    def second():
        with only_one_maker(folder):
            done.append("second")

    with only_one_maker(folder):
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(timeout=0.2)
        done.append("first")
    waiting.join()
    assert done == ["first", "second"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(NotADirectoryError, match="cannot write data: Not a directory: .*file/data"),
        only_one_maker(tmp_path / "file" / "data" / "problem"),
    ):
        pass


def test_a_given_scratch_folder_stays_and_another_does_not(tmp_path):
    with scratch_folder(tmp_path, tmp_path / "mine") as scratch:
        (scratch / "download").write_text("x")
    assert contents(tmp_path / "mine") == {"download": "x"}
    with scratch_folder(tmp_path, None) as scratch:
        (scratch / "download").write_text("x")
    assert not scratch.exists()
