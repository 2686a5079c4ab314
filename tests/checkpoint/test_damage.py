import errno
import hashlib
import json
import logging as python_logging
import os
import shutil

import pytest
import tensorflow as tf
from absl import logging

from t2tp.checkpoint import (
    Checkpoint,
    DamagedCheckpointError,
    NewerFormatError,
    Retention,
    UnusableCheckpointError,
    all_steps,
    apply_retention,
    last_finished,
    latest,
    save,
)
from tests.checkpoint import samples
from tests.files import STRANGE, flip

DATA = "variables.data-00000-of-00001"


@pytest.fixture
def run(tmp_path):
    for step in (1, 2):
        save(tmp_path, step, [samples.of_step(step)], {"seen": step * 10})
    return tmp_path


@pytest.fixture
def warnings(caplog, monkeypatch):
    """Returns a function that lists the messages of absl's warnings so far."""
    monkeypatch.setattr(logging.get_absl_logger(), "propagate", True)
    caplog.set_level(python_logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def some_of(size):
    """Returns both ends of a file, and every 11th position between them."""
    return sorted({*range(0, size, 11), *range(8), *range(size - 8, size)})


def test_every_flipped_byte_of_the_data_is_noticed_when_read(run):
    path = run / "step-00000002"
    for position in some_of((path / DATA).stat().st_size):
        flip(path / DATA, position)
        checkpoint = Checkpoint(path)
        for read in (checkpoint.verify, lambda: checkpoint.read(samples.whole())):  # noqa: B023
            with pytest.raises(DamagedCheckpointError, match=f"{path} is damaged: .* {DATA} has"):
                read()
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
    assert len(touched) in (0, 24)  # 24: the damage is in a slice of 4x6.
    assert len(untouched) == 192 - len(touched)


@pytest.mark.parametrize("name", ["variables.index", "metadata.json", "FINISHED"])
def test_every_flipped_byte_of_the_small_files_is_noticed_when_opened(run, name):
    path = run / "step-00000002" / name
    for position in some_of(path.stat().st_size):
        flip(path, position)
        with pytest.raises(DamagedCheckpointError, match=f"is damaged: .*{name}"):
            Checkpoint(path.parent)
        flip(path, position)
    samples.assert_is_step(Checkpoint(path.parent), 2)


def test_the_last_finished_is_the_latest_and_found_without_a_word(run, warnings):
    assert last_finished(run) == (run / "step-00000002", 2)
    (run / "step-00000003.tmp").mkdir()
    (run / "step-00000002").rename(run / "step-00000004")
    assert last_finished(run) == (run / "step-00000001", 1)
    (run / "step-00000001" / "FINISHED").unlink()
    assert last_finished(run) is last_finished(run / "nowhere") is None
    assert warnings() == []


def _cut_short(run):
    os.truncate(run / "step-00000002" / DATA, 100)


def _unfinished(run):
    (run / "step-00000001.tmp").mkdir()
    (run / "step-00000003.tmp").mkdir()


def _renamed(run):
    (run / "step-00000001").rename(run / "step-00000009")


CASES = [
    (_cut_short, 1, f"step-00000002 is damaged: its file {DATA} has 100 bytes"),
    (_unfinished, 2, "step-00000003.tmp: it was not finished"),
    (_renamed, 2, "step-00000009: it holds step 1"),
]


@pytest.mark.parametrize(("spoil", "step", "said"), CASES)
def test_latest_skips_a_checkpoint_and_says_why(run, warnings, spoil, step, said):
    spoil(run)
    samples.assert_is_step(latest(run), step)
    (warning,) = warnings()
    assert said in warning


def test_a_copy_of_another_name_can_be_opened(run):
    shutil.copytree(run / "step-00000002", run / "best")
    samples.assert_is_step(Checkpoint(run / "best"), 2)
    assert all_steps(run) == [1, 2]


def test_a_directory_that_is_no_checkpoint_is_named(run):
    with pytest.raises(UnusableCheckpointError, match=r"nowhere is not a checkpoint: there is no"):
        Checkpoint(run / "nowhere")


def _has_another_steps_name(path):
    shutil.rmtree(path)
    shutil.copytree(path.with_name("step-00000001"), path)


def _is_a_file(path):
    shutil.rmtree(path)
    path.write_text("what somebody has put there")


def _is_a_link_to_itself(path):
    shutil.rmtree(path)
    path.symlink_to(path)


IN_ITS_PLACE = [
    lambda path: (path / DATA).unlink(),
    lambda path: (path / "FINISHED").unlink(),
    *(_has_another_steps_name, _is_a_file, _is_a_link_to_itself),
]


@pytest.mark.parametrize(
    "spoil", IN_ITS_PLACE, ids=["no file", "no marker", "another step", "a file", "a link"]
)
def test_what_stands_in_the_place_of_a_step_is_kept_aside_when_it_is_saved(run, warnings, spoil):
    path = run / "step-00000002"
    aside = [run / "step-00000002.damaged", run / "step-00000002.damaged-2"]
    for number, kept in enumerate(aside, start=1):
        spoil(path)
        found = contents(path)
        save(run, 2, [samples.of_step(2)], {"seen": 20})
        samples.assert_is_step(latest(run), 2)
        assert contents(kept) == found
        assert sorted(run.glob("*.damaged*")) == aside[:number]
        assert f"it is kept as {kept}, and the step is saved again" in warnings()[-1]


def contents(path):
    """Returns a link's target, a file's bytes, or the bytes of all files in a directory."""
    if path.is_symlink():
        return path.readlink()
    if path.is_file():
        return path.read_bytes()
    return {each.name: each.read_bytes() for each in path.iterdir()}


def test_what_a_crash_has_left_under_a_temporary_name_may_be_of_any_kind(run):
    (run / "step-00000002.tmp").write_text("")
    (run / "step-00000003.tmp").symlink_to(run / "step-00000003.tmp")
    (run / "step-00000001.discarded").write_text("")
    save(run, 3, [samples.of_step(3)], {"seen": 30})
    apply_retention(run, Retention(3))
    assert sorted(each.name for each in run.iterdir()) == [f"step-0000000{n}" for n in (1, 2, 3)]


AT_ITS_PLACE = ["nothing", "a link to itself", "a directory", "a device", "a pipe"]


@pytest.mark.parametrize("name", ["FINISHED", DATA, "variables.index", "metadata.json"])
@pytest.mark.parametrize("fault", AT_ITS_PLACE)
def test_one_with_something_else_for_a_file_is_skipped_with_a_sentence(run, warnings, name, fault):
    path = run / "step-00000002" / name
    path.unlink()
    if fault != "nothing":
        STRANGE[fault](path)
    samples.assert_is_step(latest(run), 1)
    assert last_finished(run) == (run / "step-00000001", 1)
    (warning,) = warnings()
    assert warning.startswith("Skipping a checkpoint: ")
    assert str(path.parent) in warning and name in warning
    assert all_steps(run) == [1]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_what_cannot_be_read_is_not_taken_for_damaged(run, warnings, monkeypatch, code):
    """Covers missing permissions, a disk that fails, and a server that does not answer."""
    found = contents(run / "step-00000002")

    def refuses(path):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr("t2tp.checkpoint.marker.FileRecord.from_file", refuses)
    said = rf"step-00000002 cannot be read: .*{os.strerror(code)}: .*\."
    for read in (lambda: Checkpoint(run / "step-00000002"), lambda: latest(run)):
        with pytest.raises(UnusableCheckpointError, match=said) as error:
            read()
        assert not isinstance(error.value, DamagedCheckpointError)
    with pytest.raises(OSError, match=r"step 2 could not be saved .* cannot be read"):
        save(run, 2, [samples.of_step(2)], {"seen": 20})
    assert all_steps(run) == []
    assert last_finished(run) == (run / "step-00000002", 2)
    assert os.strerror(code) in warnings()[0]
    monkeypatch.undo()
    assert contents(run / "step-00000002") == found
    samples.assert_is_step(latest(run), 2)


@pytest.mark.parametrize("misreads", [1, 2])
def test_a_wrong_read_is_repeated_before_a_file_counts_as_damaged(run, monkeypatch, misreads):
    """A checksum may mismatch once because of memory or a network."""
    reads, restore = [], tf.raw_ops.RestoreV2

    def misread(**inputs):
        reads.append(inputs)
        if len(reads) <= misreads:
            raise tf.errors.DataLossError(None, None, "shard 0 (9 bytes): Checksum does not match")
        return restore(**inputs)

    checkpoint = Checkpoint(run / "step-00000002")
    monkeypatch.setattr(tf.raw_ops, "RestoreV2", misread)
    if misreads == 1:
        samples.assert_is_step(checkpoint, 2)
        return
    with pytest.raises(DamagedCheckpointError, match=DATA):
        checkpoint.read(samples.whole())


def test_an_error_of_reading_values_is_an_unusable_checkpoint(run):
    checkpoint = Checkpoint(run / "step-00000002")
    (run / "step-00000002" / DATA).unlink()
    (run / "step-00000002" / DATA).mkdir()
    with pytest.raises(UnusableCheckpointError, match="step-00000002 (is damaged|cannot be read)"):
        checkpoint.read(samples.whole())


def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(tmp_path, monkeypatch):
    def refuses(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("pathlib.Path.iterdir", refuses)
    with pytest.raises(UnusableCheckpointError, match=f"{tmp_path} cannot be read: .*denied"):
        latest(tmp_path)


@pytest.fixture
def of_the_future(run, monkeypatch):
    """Saves the run's latest checkpoint in a newer format."""
    monkeypatch.setattr("t2tp.checkpoint.marker.FORMAT", 2)
    path = save(run, 3, [samples.of_step(3)], {})
    monkeypatch.undo()
    return path


def test_a_format_of_the_future_is_refused_and_not_passed_over(run, of_the_future):
    with pytest.raises(NewerFormatError, match=r"has format 2; this .* reads format 1: use at"):
        Checkpoint(of_the_future)
    with pytest.raises(NewerFormatError, match="step-00000003 has format 2"):
        latest(run)
    samples.assert_is_step(latest(run, before=3), 2)
    assert latest(run, before=1) is None
    assert last_finished(run) == (of_the_future, 3)


def test_a_format_of_the_future_stays_where_it_is(run, of_the_future, warnings):
    found = contents(of_the_future)
    with pytest.raises(OSError, match=r"step 3 could not be saved .* has format 2"):
        save(run, 3, [samples.of_step(3)], {"seen": 30})
    apply_retention(run, Retention(1))
    assert all_steps(run) == [2]
    assert contents(of_the_future) == found
    assert "step-00000003 has format 2" in warnings()[-1]


NO_MARKERS = [[], 7, {}, {"format": "1"}, {"format": 0}, {"format": 1, "step": 2, "files": 3}]


@pytest.mark.parametrize("fields", NO_MARKERS)
def test_a_sealed_marker_of_other_fields_is_damaged(run, fields):
    body = json.dumps(fields).encode()
    digest = hashlib.sha256(body).hexdigest().encode()
    (run / "step-00000002/FINISHED").write_bytes(body + b"\n" + digest + b"\n")
    with pytest.raises(UnusableCheckpointError, match="is damaged: .*FINISHED"):
        Checkpoint(run / "step-00000002")
    assert latest(run).step == 1
