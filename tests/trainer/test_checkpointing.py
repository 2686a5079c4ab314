"""What a run saves, when, what stays of it, and what training goes on from."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import checkpoint, mtf
from t2tp.checkpoint import Checkpoint, Retention, UnusableCheckpointError, all_steps
from t2tp.mesh.cluster import Cluster, connect
from t2tp.mesh.layout import Layout
from t2tp.mesh.variables import Variables, VariableSpec
from t2tp.optim.guards import SKIPPED_STEPS
from t2tp.trainer import checkpointing
from t2tp.trainer.checkpoint_hook import EverySeconds
from t2tp.trainer.checkpointing import CheckpointMismatchError
from t2tp.trainer.errors import UsageError
from t2tp.trainer.interrupt import TrainingInterrupted
from t2tp.trainer.model_fn import ModeKeys
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_lock import RunLockedError
from t2tp.trainer.run_saver import RunSaver, SavingError
from tests.trainer import toy
from tests.trainer.test_estimator import At, Crash, Note, estimator, losses


def data_file(run: Path, step: int) -> Path:
    """The file with the values of a step."""
    return run / f"checkpoints/step-{step:08d}/variables.data-00000-of-00001"


def flip_a_byte(path: Path) -> None:
    """Changes the first byte, without changing the size."""
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def folder_of(run: Path, step: int) -> Path:
    return checkpoint.step_folder(run / "checkpoints", step)


# What is saved.


def test_a_checkpoint_names_dimensions_what_is_trained_and_where_it_lay(tmp_path):
    estimator(tmp_path).train(toy.inputs(), 1)
    saved = checkpointing.find(str(tmp_path))
    assert saved.metadata == {
        "mesh_shape": "data:2;model:2",
        "layout": "batch:data;d_out:model",
        "dimensions": {"w": ["d_in", "d_out"], "w_momentum_v": ["d_in", "d_out"]},
        "trainable": ["w"],
        "random_seed": 0,
    }
    assert str(checkpointing.named_shape(saved, "w")) == "Shape[d_in=6, d_out=4]"
    cut = checkpointing.slices_as_saved(saved, "w")
    assert [(each.begin, each.size) for each in cut] == [((0, 0), (6, 2)), ((0, 2), (6, 2))]
    reader = tf.train.load_checkpoint(saved.prefix)
    assert reader.get_variable_to_shape_map() == {"w": [6, 4], "w_momentum_v": [6, 4]}


@pytest.mark.parametrize("name", ["", "checkpoints", "checkpoints/step-00000004/variables"])
def test_a_checkpoint_is_found_by_any_of_its_names(tmp_path, name):
    estimator(tmp_path).train(toy.inputs(), 4)
    assert checkpointing.find(str(tmp_path / name)).step == 4


def test_where_no_checkpoint_is_found_the_path_is_named(tmp_path):
    (tmp_path / "empty/checkpoints").mkdir(parents=True)
    for path, what in {"none": "does not exist", "empty": "holds no finished checkpoint"}.items():
        with pytest.raises(FileNotFoundError, match=f"{path} {what}"):
            checkpointing.find(str(tmp_path / path))
    with pytest.raises(UnusableCheckpointError, match="is not a checkpoint"):
        checkpointing.find(str(tmp_path))


def variables(dtype: tf.DType, mesh_shape: str = "", name: str = "w") -> Variables:
    """One variable of random values, split over the mesh."""
    layout = Layout(mesh_shape, "d_in:model")
    made = Variables(layout, connect(layout.size))
    shape = mtf.Shape([mtf.Dimension("d_in", 8), mtf.Dimension("d_out", 4)])
    made.create(VariableSpec(name, shape, dtype, tf1.random_normal_initializer(), trainable=True))
    return made


@pytest.mark.parametrize("there", [tf.float32, tf.bfloat16, tf.float16], ids=lambda d: d.name)
@pytest.mark.parametrize("here", [tf.float32, tf.bfloat16, tf.float16], ids=lambda d: d.name)
def test_values_are_restored_in_any_precision_on_any_mesh(tmp_path, there, here):
    old, new = variables(there, "model:4"), variables(here, "model:2")
    with RunSaver(tmp_path, old, Retention(1), {}) as saver:
        saver.save(1)
    saved = Checkpoint(folder := checkpoint.step_folder(tmp_path, 1))
    assert saved.path == folder
    checkpointing.check_fit(saved, new, whole=True)
    checkpointing.restore(saved, new)
    wanted = tf.cast(old["w"].numpy(), here)
    np.testing.assert_array_equal(
        tf.cast(new["w"].numpy(), tf.float32), tf.cast(wanted, tf.float32)
    )


def test_numbers_of_another_kind_are_refused(tmp_path):
    with RunSaver(tmp_path, variables(tf.float32), Retention(1), {}) as saver:
        saver.save(1)
    whole_numbers = Variables(Layout(), connect(1))
    shape = mtf.Shape([mtf.Dimension("d_in", 8), mtf.Dimension("d_out", 4)])
    whole_numbers.create(VariableSpec("w", shape, tf.int32, tf1.zeros_initializer(), True))
    saved = Checkpoint(checkpoint.step_folder(tmp_path, 1))
    with pytest.raises(
        CheckpointMismatchError, match="w is float32 in the .* int32 in the program"
    ):
        checkpointing.check_fit(saved, whole_numbers, whole=True)


def test_a_count_of_skipped_steps_that_was_not_kept_begins_at_0(tmp_path):
    """Checkpoints of runs in float16 did not have it."""
    with RunSaver(tmp_path, variables(tf.float32), Retention(1), {}) as saver:
        saver.save(1)
    now = variables(tf.float32)
    ones = tf1.ones_initializer()
    count = now.create(VariableSpec(SKIPPED_STEPS, mtf.Shape([]), tf.float32, ones, False))
    saved = Checkpoint(checkpoint.step_folder(tmp_path, 1))
    checkpointing.check_fit(saved, now, whole=True)
    checkpointing.restore(saved, now)
    assert count.numpy() == 0
    now.create(VariableSpec("step_guard/count", mtf.Shape([]), tf.float32, ones, False))
    with pytest.raises(CheckpointMismatchError, match="step_guard/count is not in the checkpoint"):
        checkpointing.check_fit(saved, now, whole=True)


# Beside the training.


@pytest.fixture
def slow_saves(monkeypatch):
    """Saves wait until somebody lets them go on."""
    save, go_on = checkpoint.save, threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Path:
        assert go_on.wait(20)
        return save(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", slow)
    return go_on


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, slow_saves):
    estimator(tmp_path / "usual", save_checkpoints_steps=7).train(
        toy.inputs(), 7, [At(5, slow_saves.set)]
    )
    slow_saves.clear()
    # Step 6 is done before the save of step 4 goes on: it has the values of step 4 all the same.
    run = tmp_path / "slow"
    estimator(run).train(toy.inputs(), 7, [At(6, slow_saves.set)])
    assert all_steps(run / "checkpoints") == [4, 7]
    again = estimator(tmp_path / "again")
    shutil.copytree(folder_of(run, 4), folder_of(tmp_path / "again", 4))
    again.train(toy.inputs(), 7)
    names = ["w", "w_momentum_v"]
    kinds = [checkpoint.Slice.whole(name, (6, 4), tf.float32) for name in names]
    both = [Checkpoint(folder_of(tmp_path / name, 7)).read(kinds) for name in ("usual", "again")]
    np.testing.assert_array_equal(*both)


def test_an_interrupt_waits_for_what_is_being_written(tmp_path, slow_saves):
    threading.Timer(1.0, slow_saves.set).start()
    stop = At(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(TrainingInterrupted, match="after step 5, which is saved"):
        estimator(tmp_path, grace_seconds=30.0).train(toy.inputs(), 7, [stop])
    assert all_steps(tmp_path / "checkpoints") == [4, 5]


def test_a_training_that_fails_waits_for_what_is_being_written(tmp_path, slow_saves):
    threading.Timer(0.5, slow_saves.set).start()
    with pytest.raises(RuntimeError, match="crash"):
        estimator(tmp_path).train(toy.inputs(), 7, [Crash(5)])
    assert all_steps(tmp_path / "checkpoints") == [4]


def test_what_cannot_be_written_ends_the_training_with_a_sentence(tmp_path):
    said = r"could not be saved in .*checkpoints: .* saved there before are untouched"

    def spoil() -> None:
        shutil.rmtree(tmp_path / "checkpoints")
        (tmp_path / "checkpoints").write_text("not a folder")

    note = Note()
    with pytest.raises(SavingError, match=f"step 20 {said}"):
        estimator(tmp_path, save_checkpoints_steps=20).train(
            toy.inputs(), 39, [note, At(10, spoil)]
        )
    assert 20 <= note.calls[-1][1] < 39
    (tmp_path / "checkpoints").unlink()
    with pytest.raises(SavingError, match=f"step 2 {said}"):
        estimator(tmp_path).train(toy.inputs(), 2, [At(1, spoil)])


UNWRITABLE = {
    "a file": lambda path: path.write_text(""),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a folder of the system's": lambda path: path.symlink_to("/proc/self"),
}


@pytest.mark.parametrize("kind", UNWRITABLE)
def test_where_no_checkpoint_can_be_written_no_step_is_done(tmp_path, kind):
    UNWRITABLE[kind](tmp_path / "checkpoints")
    note = Note()
    said = f"checkpoints cannot be written into {tmp_path / 'checkpoints'}: "
    with pytest.raises(UsageError, match=said):
        estimator(tmp_path, save_checkpoints_steps=20).train(toy.inputs(), 39, [note])
    assert note.calls == []


# When.


def due_steps(seconds: float, step_seconds: Any, num_processes: int, steps: int):
    """When a checkpoint is due, and how often process 0 was asked, by a clock of our own."""
    now, asked = [0.0], [0]

    def clock() -> float:
        asked[0] += 1
        return now[0]

    cluster = Cluster(("CPU:0",) * num_processes, 0, num_processes)
    cadence, due = EverySeconds(seconds, cluster, 0, clock), []
    for step in range(1, steps + 1):
        now[0] += step_seconds(step)
        if cadence.is_due(step):
            due.append(step)
            cadence.saved(step)
    return due, asked[0]


@pytest.mark.parametrize("num_processes", [1, 4])
def test_a_checkpoint_every_so_many_seconds(num_processes):
    due, asked = due_steps(10.0, lambda step: 1.0, num_processes, 45)
    assert due == [10, 20, 30, 40]
    due, asked = due_steps(1000.0, lambda step: 1.0, num_processes, 5000)
    assert due == [1000, 2000, 3000, 4000, 5000]
    if num_processes > 1:
        assert asked < 5 * 15  # Not after each step.


def test_steps_that_become_slower_are_noticed_on_the_way():
    due, _ = due_steps(100.0, lambda step: 0.1 if step < 300 else 1.0, 4, 900)
    assert due[0] < 600  # Of 10 s steps since the 300th, no more than twice what is left of 70.


def test_by_the_clock_or_by_steps_but_not_both():
    with pytest.raises(ValueError, match="are both given: choose one"):
        RunConfig("run", save_checkpoints_steps=1, save_checkpoints_secs=1.0)
    with pytest.raises(ValueError, match="save_checkpoints_secs is 0, and must be above 0"):
        RunConfig("run", save_checkpoints_secs=0)


def test_a_run_that_saves_by_the_clock(tmp_path):
    settings = {"save_checkpoints_steps": None, "save_checkpoints_secs": 1e-6}
    estimator(tmp_path, **settings).train(toy.inputs(), 3)
    assert all_steps(tmp_path / "checkpoints") == [1, 2, 3]


# What stays.


def evaluated(run: Path, values: dict[int, float], **settings: Any) -> list[int]:
    """Trains 12 steps, evaluated at some as something; the steps that stay."""
    trained = estimator(run, keep_checkpoint_max=1, **settings)
    evaluations = [
        At(step, lambda loss=loss: trained.record_metrics({"loss": loss}))
        for step, loss in values.items()
    ]
    trained.train(toy.inputs(), 12, evaluations)
    return all_steps(run / "checkpoints")


def test_what_was_evaluated_best_is_saved_and_stays(tmp_path):
    # Step 3 and 5 are none of those that are saved anyway.
    values = {3: 5.0, 5: 1.0, 6: 2.0, 8: 3.0, 10: float("nan")}
    assert evaluated(tmp_path / "least", values, keep_best_metric="min:loss") == [5, 12]
    assert evaluated(tmp_path / "most", values, keep_best_metric="max:loss") == [3, 12]
    assert evaluated(tmp_path / "none", values) == [12]
    assert checkpoint.read_metrics(folder_of(tmp_path / "least", 5)) == {"loss": 1.0}


def test_an_evaluation_that_comes_later_counts_too(tmp_path):
    settings = {"keep_checkpoint_max": 3, "keep_best_metric": "min:loss"}
    estimator(tmp_path, **settings).train(toy.inputs(), 12)
    for step, loss in ((4, 1.0), (8, 2.0)):
        checkpoint.record_metrics(folder_of(tmp_path, step), {"loss": loss})
    settings["keep_checkpoint_max"] = 1
    estimator(tmp_path, **settings).train(toy.inputs(), 16)
    assert all_steps(tmp_path / "checkpoints") == [4, 16]


def test_the_newest_checkpoint_gets_the_metrics_of_its_evaluation(tmp_path):
    trained = estimator(tmp_path)
    trained.train(toy.inputs(), 4)
    trained.record_metrics({"loss": 2.0})
    assert checkpoint.read_metrics(folder_of(tmp_path, 4)) == {"loss": 2.0}
    named = estimator(tmp_path / "other", checkpoint_path=str(tmp_path))
    named.evaluate(toy.inputs())
    named.record_metrics({"loss": 3.0})
    assert checkpoint.read_metrics(folder_of(tmp_path, 4)) == {"loss": 2.0}


def test_a_goal_that_cannot_be_read_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="'accuracy' does not say what is best"):
        estimator(tmp_path, keep_best_metric="accuracy")


# What training goes on from.


def test_a_damaged_checkpoint_is_passed_over_and_kept_aside(tmp_path, caplog):
    estimator(tmp_path / "undisturbed").train(toy.inputs(), 14)
    run = tmp_path / "damaged"
    estimator(run).train(toy.inputs(), 10)
    for step in (8, 10):
        flip_a_byte(data_file(run, step))
    resumed, note = estimator(run), Note()
    resumed.train(toy.inputs(), 14, [note])
    assert note.calls[0] == ("begin", 4)
    assert losses(run) == losses(tmp_path / "undisturbed")
    assert all_steps(run / "checkpoints") == [4, 8, 12, 14]
    for step in (8, 10):
        assert (run / f"checkpoints/step-{step:08d}.damaged").is_dir()


def test_to_evaluate_leaves_a_damaged_checkpoint_where_it_is(tmp_path):
    estimator(tmp_path).train(toy.inputs(), 8)
    wanted = estimator(tmp_path).evaluate(toy.inputs(), 1)
    estimator(tmp_path).train(toy.inputs(), 10)
    flip_a_byte(data_file(tmp_path, 10))
    evaluating = estimator(tmp_path)
    assert evaluating.evaluate(toy.inputs(), 1) == wanted
    assert evaluating.steps_done == 8
    assert folder_of(tmp_path, 10).is_dir()


@pytest.mark.parametrize("damage", [flip_a_byte, Path.unlink, lambda path: path.write_bytes(b"")])
def test_if_all_are_damaged_nothing_begins_anew(tmp_path, damage):
    estimator(tmp_path).train(toy.inputs(), 4)
    damage(data_file(tmp_path, 4))
    before = data_file(tmp_path, 4).parent.stat().st_mtime_ns
    with pytest.raises(UnusableCheckpointError, match="none of them can be used: each is damaged"):
        estimator(tmp_path).train(toy.inputs(), 8)
    assert data_file(tmp_path, 4).parent.stat().st_mtime_ns == before


def test_a_named_checkpoint_is_taken_and_no_other(tmp_path):
    estimator(tmp_path).train(toy.inputs(), 10)
    evaluating = estimator(tmp_path, checkpoint_path=str(folder_of(tmp_path, 4)))
    evaluating.evaluate(toy.inputs(), 1)
    assert evaluating.steps_done == 4
    flip_a_byte(data_file(tmp_path, 10))
    for path in (folder_of(tmp_path, 10), tmp_path):
        with pytest.raises(UnusableCheckpointError, match="step-00000010 is damaged"):
            estimator(tmp_path, checkpoint_path=str(path)).evaluate(toy.inputs(), 1)


def test_to_train_from_a_named_checkpoint_is_a_new_run(tmp_path):
    estimator(tmp_path).train(toy.inputs(), 4)
    with pytest.raises(UsageError, match="begin a new run with warm_start_from="):
        estimator(tmp_path, checkpoint_path=str(tmp_path)).train(toy.inputs(), 8)


def test_another_optimizer_is_told_how_to_begin(tmp_path):
    estimator(tmp_path / "old", hparams={"momentum": False}).train(toy.inputs(), 4)
    shutil.copytree(tmp_path / "old/checkpoints", tmp_path / "new/checkpoints")
    said = "w_momentum_v is not in the checkpoint; only what the optimizer keeps differs: a new run"
    with pytest.raises(CheckpointMismatchError, match=said):
        estimator(tmp_path / "new").train(toy.inputs(), 8)
    warm = estimator(tmp_path / "warm", warm_start_from=str(tmp_path / "old"))
    warm.train(toy.inputs(), 1)
    assert losses(tmp_path / "warm")[0] < losses(tmp_path / "old")[0]


def test_what_another_process_has_trained_meanwhile_is_not_overwritten(tmp_path):
    estimator(tmp_path).train(toy.inputs(), 4)
    late = estimator(tmp_path)
    late.build(ModeKeys.TRAIN, toy.inputs().features)
    estimator(tmp_path).train(toy.inputs(), 8)
    with pytest.raises(RunLockedError, match="newest checkpoint is of step 8, and .* at step 4"):
        late.train(toy.inputs(), 8)
