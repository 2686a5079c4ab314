"""The Estimator on a regression that takes milliseconds a step."""

import os
import signal
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from t2tp import checkpoint
from t2tp.checkpoint.variables import CheckpointMismatchError
from t2tp.processes.cluster import Cluster
from t2tp.program.program import Feature
from t2tp.trainer.hooks.hook import Hook, Training
from t2tp.trainer.processes.interrupt import TrainingInterrupted
from tests.trainer import toy
from tests.trainer.toy_estimator import At, Note, crash, estimator, losses
from tests.warm_processes import WarmProcess


def test_evaluation_adds_up_all_batches_on_any_mesh(tmp_path):
    trained = estimator(tmp_path)
    trained.train(toy.inputs(), 8)
    sums = trained.evaluate(toy.inputs())
    assert sums["tokens"] == 5 * toy.BATCH * toy.D_OUT
    assert estimator(tmp_path).evaluate(toy.inputs()) == sums
    assert estimator(tmp_path, "one device").evaluate(toy.inputs()) == pytest.approx(sums)
    first, two = (trained.evaluate(toy.inputs(), steps)["error"] for steps in (1, 2))
    assert 0 < first < two < sums["error"]


def test_evaluating_before_training_does_not_lose_the_optimizer(tmp_path):
    estimator(tmp_path / "straight").train(toy.inputs(), 12)
    estimator(tmp_path / "evaluated").train(toy.inputs(), 8)
    again = estimator(tmp_path / "evaluated")
    again.evaluate(toy.inputs())
    again.train(toy.inputs(), 12)
    again.evaluate(toy.inputs())
    assert losses(tmp_path / "evaluated") == losses(tmp_path / "straight")


def test_predictions_are_the_trained_models(tmp_path):
    trained = estimator(tmp_path)
    trained.train(toy.inputs(), 4)
    x = toy.Stream()[0]["x"]
    features = {"x": Feature(f"batch:{toy.BATCH};d_in:{toy.D_IN}")}
    w = next(v for v in trained._variables if v.spec.name == "w").numpy()
    y = estimator(tmp_path, "model").predict(features, {"x": x})["y"]
    np.testing.assert_allclose(y, x @ w, rtol=1e-5, atol=1e-6)


def test_without_a_checkpoint_nothing_is_evaluated(tmp_path):
    fresh = estimator(tmp_path / "run")
    for _ in range(2):  # The second time the variables exist, but have never been trained.
        with pytest.raises(FileNotFoundError, match="holds no finished checkpoint"):
            fresh.evaluate(toy.inputs())
    assert not (tmp_path / "run").exists()


def test_another_optimizers_state_is_refused_to_train_with_but_not_to_evaluate(tmp_path):
    estimator(tmp_path).train(toy.inputs(), 1)
    for evaluated_before in (False, True):
        other = estimator(tmp_path, hparams={"momentum": False})
        if evaluated_before:
            other.evaluate(toy.inputs())
        with pytest.raises(CheckpointMismatchError, match="is only in the checkpoint"):
            other.train(toy.inputs(), 2)


def test_what_hooks_do_at_a_step_is_done_when_it_is_saved(tmp_path):
    with pytest.raises(RuntimeError, match="crash"):
        estimator(tmp_path).train(toy.inputs(), 14, [At(8, crash)])
    assert checkpoint.all_steps(tmp_path / "checkpoints") == [4]


def test_hooks_are_called_around_each_step(tmp_path):
    trained, note = estimator(tmp_path), Note()
    trained.train(toy.inputs(), 2, [note])
    assert note.calls == [
        ("begin", 0),
        *[("before", 0), ("after", 1)],
        *[("before", 1), ("after", 2)],
        ("end", 2),
    ]
    trained.train(toy.inputs(), 2, [note])
    assert len(note.calls) == 6


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_step_and_leaves(tmp_path, number):
    class Interrupt(Hook):
        def before_step(self, training: Training) -> None:
            if training.steps_done == 5:
                os.kill(os.getpid(), number)
                if number == signal.SIGTERM:  # A killed launcher may cause it twice.
                    os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(TrainingInterrupted, match="interrupted after step 6, which is saved") as e:
        estimator(tmp_path / "interrupted").train(toy.inputs(), 12, [Interrupt()])
    assert e.value.exit_code == 128 + number
    assert signal.getsignal(number) is before
    assert checkpoint.all_steps(tmp_path / "interrupted/checkpoints") == [4, 6]
    estimator(tmp_path / "interrupted").train(toy.inputs(), 12)
    estimator(tmp_path / "straight").train(toy.inputs(), 12)
    assert losses(tmp_path / "interrupted") == losses(tmp_path / "straight")


def test_a_second_signal_leaves_at_once_and_says_so(tmp_path):
    interrupts = [At(5, lambda: os.kill(os.getpid(), signal.SIGINT)) for _ in range(2)]
    with pytest.raises(KeyboardInterrupt, match="interrupted again"):
        estimator(tmp_path).train(toy.inputs(), 12, interrupts)


def train_and_get_stuck() -> None:
    """Trains in the directory of the first argument, and sleeps after a signal."""

    def stuck():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    estimator(sys.argv[1], grace_seconds=1.0).train(toy.inputs(), 12, [At(6, stuck)])


@pytest.mark.slow
def test_when_the_time_of_grace_is_over_it_leaves_with_what_is_saved(tmp_path):
    target, output = "tests.trainer.test_estimator:train_and_get_stuck", tmp_path / "output"
    with WarmProcess(target, [str(tmp_path / "run")], {}, output) as process:
        assert process.wait() == 128 + signal.SIGTERM
    assert "within the grace time of 1 s" in process.err.read_text()
    assert checkpoint.all_steps(tmp_path / "run/checkpoints") == [4]


CASES = [
    (False, "one device", None, False),
    (False, "one device", True, True),
    (False, "data", None, True),
    (False, "data", False, False),
    (True, "data", True, False),  # Its kernels are deterministic.
]


@pytest.mark.parametrize(("on_cpu", "mesh", "deterministic", "expected"), CASES)
def test_gpus_repeat_a_run_if_asked_or_if_there_are_several(
    on_cpu, mesh, deterministic, expected, tmp_path, monkeypatch
):
    enabled = []
    monkeypatch.setattr(
        tf.config.experimental, "enable_op_determinism", lambda: enabled.append(True)
    )
    monkeypatch.setattr(Cluster, "on_cpu", on_cpu)
    estimator(tmp_path, mesh, deterministic=deterministic).connect()
    assert bool(enabled) == expected
