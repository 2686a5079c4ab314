from __future__ import annotations

import logging as python_logging
import shutil

import pytest
from absl import logging

from t2tp.checkpoint import (
    Checkpoint,
    UnusableCheckpointError,
    all_steps,
    last_finished,
    latest,
    save,
)
from tests.checkpoint import samples

DATA = "variables.data-00000-of-00001"


@pytest.fixture
def run(tmp_path):
    for step in (1, 2):
        save(tmp_path, step, samples.of_step(step), {"seen": step * 10})
    return tmp_path


@pytest.fixture
def warnings(caplog, monkeypatch):
    """What absl logs, as pytest sees it."""
    monkeypatch.setattr(logging.get_absl_logger(), "propagate", True)
    caplog.set_level(python_logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_every_flipped_byte_of_the_data_is_noticed_when_read(run):
    path = run / "step-00000002"
    for position in range((path / DATA).stat().st_size):
        flip(path / DATA, position)
        checkpoint = Checkpoint(path)
        with pytest.raises(UnusableCheckpointError, match=f"{path} is damaged"):
            checkpoint.read(samples.whole())
        flip(path / DATA, position)
    samples.assert_is_step(Checkpoint(path), 2)


def test_a_flipped_byte_is_noticed_when_only_its_neighbours_in_the_slice_are_read(run):
    path = run / "step-00000002"
    flip(path / DATA, 0)
    touched, untouched = [], []
    for row in range(16):
        for column in range(12):
            try:
                Checkpoint(path).read([samples.part((row, column), (1, 1))])
                untouched.append((row, column))
            except UnusableCheckpointError:
                touched.append((row, column))
    assert len(touched) in (0, 24)  # All of a 4x6 slice, or another tensor was hit.
    assert len(untouched) == 192 - len(touched)


@pytest.mark.parametrize("name", ["variables.index", "metadata.json", "FINISHED"])
def test_every_flipped_byte_of_the_small_files_is_noticed_when_opened(run, name):
    path = run / "step-00000002" / name
    for position in range(path.stat().st_size):
        flip(path, position)
        with pytest.raises(UnusableCheckpointError, match=f"is damaged: .*{name}"):
            Checkpoint(path.parent)
        flip(path, position)
    samples.assert_is_step(Checkpoint(path.parent), 2)


def test_verify_names_the_file_with_the_flipped_byte(run):
    flip(run / "step-00000002" / DATA, 50)
    with pytest.raises(UnusableCheckpointError, match=f"content of its file {DATA}"):
        Checkpoint(run / "step-00000002").verify()


@pytest.mark.parametrize("name", ["FINISHED", DATA, "variables.index", "metadata.json"])
def test_latest_skips_one_that_lacks_a_file_and_says_so(run, warnings, name):
    (run / "step-00000002" / name).unlink()
    samples.assert_is_step(latest(run), 1)
    (warning,) = warnings()
    assert "step-00000002" in warning
    assert name in warning
    assert all_steps(run) == [1]


def test_the_last_finished_is_the_latest_and_found_without_a_word(run, warnings):
    assert last_finished(run) == (run / "step-00000002", 2)
    (run / "step-00000003.tmp").mkdir()
    (run / "step-00000002").rename(run / "step-00000004")
    assert last_finished(run) == (run / "step-00000001", 1)
    (run / "step-00000001" / "FINISHED").unlink()
    assert last_finished(run) is last_finished(run / "nowhere") is None
    assert warnings() == []


def test_the_latest_before_a_step(run):
    save(run, 7, samples.of_step(7), {"seen": 70})
    samples.assert_is_step(latest(run, before=7), 2)
    samples.assert_is_step(latest(run, before=2), 1)
    assert latest(run, before=1) is None


def test_latest_skips_one_with_a_file_cut_short_and_says_so(run, warnings):
    with open(run / "step-00000002" / DATA, "r+b") as file:
        file.truncate(100)
    samples.assert_is_step(latest(run), 1)
    (warning,) = warnings()
    assert f"step-00000002 is damaged: its file {DATA} has 100 bytes" in warning


def test_latest_warns_of_a_newer_one_that_was_not_finished(run, warnings):
    (run / "step-00000001.tmp").mkdir()
    (run / "step-00000003.tmp").mkdir()
    samples.assert_is_step(latest(run), 2)
    (warning,) = warnings()
    assert "step-00000003.tmp: it was not finished" in warning


def test_latest_skips_a_renamed_checkpoint_and_says_so(run, warnings):
    (run / "step-00000001").rename(run / "step-00000009")
    samples.assert_is_step(latest(run), 2)
    (warning,) = warnings()
    assert "step-00000009: it holds step 1" in warning


def test_a_copy_of_another_name_can_be_opened(run):
    shutil.copytree(run / "step-00000002", run / "best")
    samples.assert_is_step(Checkpoint(run / "best"), 2)
    assert all_steps(run) == [1, 2]


def test_a_folder_that_is_no_checkpoint_is_named(run):
    with pytest.raises(UnusableCheckpointError, match=r"nowhere is not a checkpoint: there is no"):
        Checkpoint(run / "nowhere")


def test_a_damaged_one_is_replaced_when_its_step_is_saved_again(run, warnings):
    (run / "step-00000002" / DATA).unlink()
    save(run, 2, samples.of_step(2), {"seen": 20})
    samples.assert_is_step(latest(run), 2)
    assert sorted(each.name for each in run.iterdir()) == ["step-00000001", "step-00000002"]
    assert "step-00000002 is unfinished or damaged; it is saved anew" in warnings()[0]


def test_a_format_of_the_future_is_refused(run, monkeypatch):
    monkeypatch.setattr("t2tp.checkpoint.marker.FORMAT", 2)
    path = save(run, 3, samples.of_step(3), {})
    monkeypatch.undo()
    with pytest.raises(UnusableCheckpointError, match=r"has format 2; this .* reads format 1"):
        Checkpoint(path)
