"""A run is saved while it trains."""

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from t2tp import checkpoint
from t2tp.checkpoint import Checkpoint, all_steps
from t2tp.checkpoint.variables import named_shape, slices_as_saved
from t2tp.trainer.errors import UsageError
from t2tp.trainer.processes.interrupt import TrainingInterrupted
from t2tp.trainer.run_dir.find_checkpoint import find
from t2tp.trainer.run_dir.run_lock import RunMovedError
from t2tp.trainer.run_dir.run_saver import SavingError
from tests.patience import PATIENCE
from tests.trainer import toy
from tests.trainer.toy_estimator import At, Note, crash, estimator, step_directory


def test_a_checkpoint_names_dimensions_what_is_trained_and_its_layout(trained_run):
    saved = find(str(trained_run))
    assert saved.metadata == {
        "mesh_shape": "data:2;model:2",
        "layout": "batch:data;d_out:model",
        "dimensions": {"w": ["d_in", "d_out"], "w_momentum_v": ["d_in", "d_out"]},
        "trainable": ["w"],
        "random_seed": 0,
    }
    assert str(named_shape(saved, "w")) == "Shape[d_in=6, d_out=4]"
    slices = slices_as_saved(saved, "w")
    assert [(each.begin, each.size) for each in slices] == [((0, 0), (6, 2)), ((0, 2), (6, 2))]
    reader = tf.train.load_checkpoint(saved.prefix)
    assert reader.get_variable_to_shape_map() == {"w": [6, 4], "w_momentum_v": [6, 4]}


# Saves in the background.


@pytest.fixture
def slow_saves(monkeypatch):
    """Makes saves wait until the returned event is set."""
    save, may_save = checkpoint.save, threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Path:
        assert may_save.wait(PATIENCE)
        return save(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", slow)
    return may_save


def soon(call: Callable[[], None]) -> None:
    threading.Timer(0.2, call).start()


def test_training_continues_while_a_checkpoint_is_written(tmp_path, trained_run, slow_saves):
    # The checkpoint of step 4 is written after step 6, but with the values of step 4: a training
    # that resumes from it has the same losses.
    run, resumed = tmp_path / "slow", tmp_path / "resumed"
    estimator(run).train(toy.inputs(), 7, [At(6, slow_saves.set)])
    assert all_steps(run / "checkpoints") == [4, 7]
    shutil.copytree(step_directory(run, 4), step_directory(resumed, 4))
    estimator(resumed).train(toy.inputs(), 8)
    names = ["w", "w_momentum_v"]
    slices = [checkpoint.Slice.full(name, (6, 4), tf.float32) for name in names]
    both = [Checkpoint(step_directory(each, 8)).read(slices) for each in (trained_run, resumed)]
    np.testing.assert_array_equal(*both)


def test_an_interrupt_waits_for_what_is_being_written(tmp_path, slow_saves):
    def interrupt() -> None:
        soon(slow_saves.set)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingInterrupted, match="after step 5, which is saved"):
        estimator(tmp_path, grace_seconds=30.0).train(toy.inputs(), 7, [At(5, interrupt)])
    assert all_steps(tmp_path / "checkpoints") == [4, 5]


def test_a_training_that_fails_waits_for_what_is_being_written(tmp_path, slow_saves):
    hooks = [At(5, lambda: soon(slow_saves.set)), At(5, crash)]
    with pytest.raises(RuntimeError, match="crash"):
        estimator(tmp_path).train(toy.inputs(), 7, hooks)
    assert all_steps(tmp_path / "checkpoints") == [4]


def test_a_deleted_checkpoint_is_noticed_at_the_next_save(tmp_path, caplog):
    def spoil() -> None:
        trained._checkpoints._saver.wait()  # Until step 4 is saved.
        shutil.rmtree(tmp_path / "checkpoints")

    trained = estimator(tmp_path)
    trained.train(toy.inputs(), 8, [At(6, spoil)])
    assert "step-00000004 was deleted by another program" in caplog.text
    assert all_steps(tmp_path / "checkpoints") == [8]


def test_any_failure_without_the_run_s_directory_is_answered_with_the_cause(tmp_path):
    def spoil() -> None:
        (tmp_path / "run").rename(tmp_path / "other")
        raise FileNotFoundError("heartbeat.json")

    with pytest.raises(RunMovedError, match="was moved or deleted"):
        estimator(tmp_path / "run").train(toy.inputs(), 8, [At(5, spoil)])


def test_what_cannot_be_written_ends_the_training_with_a_sentence(tmp_path):
    said = r"could not be saved in .*checkpoints: .* saved there before are untouched"

    def spoil() -> None:
        shutil.rmtree(tmp_path / "checkpoints")
        (tmp_path / "checkpoints").write_text("not a directory")

    note = Note()
    with pytest.raises(SavingError, match=f"step 20 {said}"):
        trained = estimator(tmp_path, save_checkpoints_steps=20)
        trained.train(toy.inputs(), 39, [note, At(10, spoil)])
    assert 20 <= note.calls[-1][1] < 39
    (tmp_path / "checkpoints").unlink()
    with pytest.raises(SavingError, match=f"step 2 {said}"):
        estimator(tmp_path).train(toy.inputs(), 2, [At(1, spoil)])


# `checkpoints` is a link to a file, to itself, to nowhere, or to a directory of the system.
@pytest.mark.parametrize("target", ["/etc/hostname", "checkpoints", "nowhere", "/proc/self"])
def test_where_no_checkpoint_can_be_written_no_step_is_done(tmp_path, target):
    (tmp_path / "checkpoints").symlink_to(target)
    note = Note()
    said = f"checkpoints cannot be written into {tmp_path / 'checkpoints'}: "
    with pytest.raises(UsageError, match=said):
        estimator(tmp_path, save_checkpoints_steps=20).train(toy.inputs(), 39, [note])
    assert note.calls == []


# Kept checkpoints.


def evaluated(run: Path, values: dict[int, float], **settings: Any) -> list[int]:
    """Trains 12 steps with the given losses of evaluations; returns the kept steps."""
    trained = estimator(run, keep_checkpoint_max=1, **settings)
    evaluations = [
        At(step, lambda loss=loss: trained.record_metrics({"loss": loss}))
        for step, loss in values.items()
    ]
    trained.train(toy.inputs(), 12, evaluations)
    return all_steps(run / "checkpoints")


def test_what_was_evaluated_best_is_saved_and_kept(tmp_path):
    # Steps 3 and 5 are saved only because they are evaluated.
    values = {3: 5.0, 5: 1.0, 6: 2.0, 8: 3.0, 10: float("nan")}
    assert evaluated(tmp_path / "min", values, keep_best_metric="min:loss") == [5, 12]
    assert evaluated(tmp_path / "max", values, keep_best_metric="max:loss") == [3, 12]
    assert evaluated(tmp_path / "none", values) == [12]
    assert checkpoint.read_metrics(step_directory(tmp_path / "min", 5)) == {"loss": 1.0}


def test_an_evaluation_that_comes_later_counts_too(run):
    for step, loss in ((4, 1.0), (8, 2.0)):
        checkpoint.record_metrics(step_directory(run, step), {"loss": loss})
    estimator(run, keep_checkpoint_max=1, keep_best_metric="min:loss").train(toy.inputs(), 12)
    assert all_steps(run / "checkpoints") == [4, 12]


def test_the_latest_checkpoint_gets_the_metrics_of_its_evaluation(run, tmp_path):
    for settings, loss in (({}, 2.0), ({"checkpoint_path": str(run)}, 3.0)):
        evaluating = estimator(tmp_path / "other" if settings else run, **settings)
        evaluating.evaluate(toy.inputs(), 1)
        evaluating.record_metrics({"loss": loss})
        # With `checkpoint_path`, the checkpoint is not changed.
        assert checkpoint.read_metrics(step_directory(run, 10)) == {"loss": 2.0}
