import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from t2tp.scratch_directory import scratch_directory


def killed_in_its_scratch_directory(parent: Path) -> Path:
    """Kills a process that works in a scratch directory; returns what it leaves behind."""

    def work() -> None:
        with scratch_directory(parent, "v[1]-") as scratch:
            (scratch / "half").write_text("done")
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    (left,) = (path for path in parent.iterdir() if (path / "half").exists())
    return left


def test_it_is_deleted_at_the_end_however_that_comes(tmp_path):
    with scratch_directory(tmp_path, "v[1]-") as scratch:
        (scratch / "more").mkdir()
    with pytest.raises(RuntimeError), scratch_directory(tmp_path, "v[1]-"):
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_deleted_by_the_next(tmp_path):
    left = killed_in_its_scratch_directory(tmp_path)
    others = [tmp_path / "v[1]-of-somebody", tmp_path / "v[1]-in-a-file", tmp_path / "results"]
    others[0].mkdir()
    others[1].write_text("not ours")
    others[2].mkdir()
    with scratch_directory(tmp_path, "v[1]-") as scratch:
        assert not left.exists()
        with scratch_directory(tmp_path, "v[1]-") as second:
            assert scratch.is_dir() and scratch != second
    assert sorted(tmp_path.iterdir()) == sorted(others)
