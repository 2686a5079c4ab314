from __future__ import annotations

import pytest

from t2tp.checkpoint import all_steps, keep, latest, save
from tests.checkpoint import samples


@pytest.fixture
def run(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step, samples.of_step(step), {"seen": step * 10})
    return tmp_path


def names(run):
    return sorted(path.name for path in run.iterdir())


@pytest.mark.parametrize(
    ("number", "left"), [(1, [3]), (2, [2, 3]), (3, [1, 2, 3]), (9, [1, 2, 3])]
)
def test_the_oldest_go(run, number, left):
    keep(run, number)
    assert all_steps(run) == left
    assert len(names(run)) == len(left)


@pytest.mark.parametrize("number", [0, -1])
def test_the_newest_never_goes(run, number):
    with pytest.raises(ValueError, match=f"not {number}"):
        keep(run, number)
    assert all_steps(run) == [1, 2, 3]


def test_damaged_ones_do_not_count_and_stay(run):
    (run / "step-00000003" / "variables.index").unlink()
    keep(run, 1)
    assert names(run) == ["step-00000002", "step-00000003"]
    samples.assert_is_step(latest(run), 2)


def test_what_crashes_left_goes_but_not_what_may_be_a_save_going_on(run):
    for name in ("step-00000002.tmp", "step-00000004.tmp", "step-00000001.discarded"):
        (run / name).mkdir()
        (run / name / "file").touch()
    keep(run, 3)
    assert names(run) == ["step-00000001", "step-00000002", "step-00000003", "step-00000004.tmp"]


def test_other_peoples_files_stay(run):
    others = ["best", "step-3", "step-00000001.bak", "step-000000001", "events.out"]
    for name in others:
        (run / name).mkdir()
    keep(run, 1)
    assert names(run) == sorted([*others, "step-00000003"])


def test_a_directory_without_checkpoints_is_left_alone(tmp_path):
    keep(tmp_path / "nowhere", 1)
    assert not (tmp_path / "nowhere").exists()
