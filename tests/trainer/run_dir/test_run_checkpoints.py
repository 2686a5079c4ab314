"""The checkpoint from which a run resumes, or that a user names."""

import shutil
from pathlib import Path

import pytest

from t2tp.checkpoint import UnusableCheckpointError, all_steps
from t2tp.checkpoint.variables import CheckpointMismatchError
from t2tp.trainer.errors import UsageError
from t2tp.trainer.model_fn import ModeKeys
from t2tp.trainer.run_dir.find_checkpoint import find
from t2tp.trainer.run_dir.run_lock import RunLockedError
from tests.files import flip
from tests.trainer import toy
from tests.trainer.toy_estimator import Note, estimator, losses, step_directory


def damage(run: Path, step: int) -> None:
    """Changes the first byte of a step's values."""
    flip(step_directory(run, step) / "variables.data-00000-of-00001")


def test_a_damaged_checkpoint_is_passed_over_and_kept_aside(run, trained_run):
    for step in (8, 10):
        damage(run, step)
    note = Note()
    estimator(run).train(toy.inputs(), 10, [note])
    assert note.calls[0] == ("begin", 4)
    assert losses(run) == losses(trained_run)
    assert all_steps(run / "checkpoints") == [4, 8, 10]
    for step in (8, 10):
        assert (run / f"checkpoints/step-{step:08d}.damaged").is_dir()


def test_to_evaluate_leaves_a_damaged_checkpoint_where_it_is(run):
    named = estimator(run, checkpoint_path=str(step_directory(run, 8)))
    expected = named.evaluate(toy.inputs(), 1)
    damage(run, 10)
    evaluating = estimator(run)
    assert evaluating.evaluate(toy.inputs(), 1) == expected
    assert evaluating.steps_done == 8
    assert step_directory(run, 10).is_dir()


def test_if_all_are_damaged_no_training_starts_from_scratch(run):
    for step in (4, 8, 10):
        damage(run, step)
    before = (run / "checkpoints").stat().st_mtime_ns
    with pytest.raises(UnusableCheckpointError, match="none of them can be used: each is damaged"):
        estimator(run).train(toy.inputs(), 12)
    assert (run / "checkpoints").stat().st_mtime_ns == before


def test_a_named_checkpoint_is_taken_and_no_other(run):
    evaluating = estimator(run, checkpoint_path=str(step_directory(run, 4)))
    evaluating.evaluate(toy.inputs(), 1)
    assert evaluating.steps_done == 4
    damage(run, 10)
    for path in (step_directory(run, 10), run):
        with pytest.raises(UnusableCheckpointError, match="step-00000010 is damaged"):
            estimator(run, checkpoint_path=str(path)).evaluate(toy.inputs(), 1)
    with pytest.raises(UsageError, match="a new run with warm_start_from="):
        evaluating.train(toy.inputs(), 12)


def test_another_optimizer_is_told_how_to_begin(tmp_path):
    estimator(tmp_path / "old", hparams={"momentum": False}).train(toy.inputs(), 4)
    shutil.copytree(tmp_path / "old/checkpoints", tmp_path / "new/checkpoints")
    said = "w_momentum_v is not in the checkpoint; only optimizer variables differ: a new run"
    with pytest.raises(CheckpointMismatchError, match=said):
        estimator(tmp_path / "new").train(toy.inputs(), 8)


def test_what_another_process_has_trained_meanwhile_is_not_overwritten(run, tmp_path):
    step_directory(run, 8).rename(tmp_path / "meanwhile")
    shutil.rmtree(step_directory(run, 10))
    late = estimator(run)
    late.build(ModeKeys.TRAIN, toy.inputs().features)
    (tmp_path / "meanwhile").rename(step_directory(run, 8))
    with pytest.raises(RunLockedError, match="latest checkpoint is of step 8, and .* at step 4"):
        late.train(toy.inputs(), 8)


NAMES = ["", "checkpoints", "checkpoints/step-00000010", "checkpoints/step-00000010/variables"]


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_is_found_by_any_of_its_names(trained_run, name):
    assert find(str(trained_run / name)).step == 10


def test_where_no_checkpoint_is_found_the_path_is_named(tmp_path):
    (tmp_path / "empty/checkpoints").mkdir(parents=True)
    for path, what in {"none": "does not exist", "empty": "holds no finished checkpoint"}.items():
        with pytest.raises(FileNotFoundError, match=f"{path} {what}"):
            find(str(tmp_path / path))
    with pytest.raises(UnusableCheckpointError, match="is not a checkpoint"):
        find(str(tmp_path))
