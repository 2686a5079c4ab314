import os

import pytest

from t2tp.scratch_directory import scratch_directory
from tests.killed import killed_before_renaming


def test_it_is_deleted_at_the_end_however_that_comes(tmp_path):
    with scratch_directory(tmp_path, "v[1]-") as scratch:
        (scratch / "more").mkdir()
    with pytest.raises(RuntimeError), scratch_directory(tmp_path, "v[1]-"):
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_deleted_by_the_next(tmp_path):
    def work() -> None:
        with scratch_directory(tmp_path, "v[1]-") as scratch:
            (scratch / "half").write_text("done")
            os.replace(scratch / "half", tmp_path / "result")

    killed_before_renaming(work)
    (left,) = tmp_path.iterdir()
    assert (left / "half").exists()
    others = [tmp_path / "v[1]-of-somebody", tmp_path / "v[1]-in-a-file", tmp_path / "results"]
    others[0].mkdir()
    others[1].write_text("not ours")
    others[2].mkdir()
    with scratch_directory(tmp_path, "v[1]-") as scratch:
        assert not left.exists()
        with scratch_directory(tmp_path, "v[1]-") as second:
            assert scratch.is_dir() and scratch != second
    assert sorted(tmp_path.iterdir()) == sorted(others)
