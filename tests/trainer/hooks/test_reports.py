"""Reports of a training about its steps, as the event files contain them."""

import time

import numpy as np
import pytest

from t2tp.processes.cluster import Cluster
from t2tp.trainer.hooks.hook import EvaluationHook, Training, TrainingClock
from t2tp.trainer.hooks.mfu import Utilization, peak_of
from t2tp.trainer.hooks.reports import ReportHook
from tests.trainer import toy
from tests.trainer.hooks.events import read_scalars, read_texts
from tests.trainer.toy_estimator import estimator


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trains a run on four devices, which is evaluated after step 8; returns its directory."""
    directory = tmp_path_factory.mktemp("run")
    evaluate = EvaluationHook(8, lambda: time.sleep(0.1), str)
    settings = {"log_step_count_steps": 4, "save_checkpoints_steps": 8}
    estimator(directory, **settings).train(toy.inputs(), 12, [evaluate])
    return directory


def test_the_time_of_a_step_is_split(run):
    scalars = read_scalars(run)
    for step, seconds in scalars["step_time"].items():
        parts = scalars["time/data"][step] + scalars["time/compute"][step]
        assert parts == pytest.approx(seconds, rel=1e-4)
    assert scalars["time/evaluation"][12] >= 0.1 / 4  # After step 8.
    assert scalars["time/checkpoint"][12] > 0
    assert 8 not in scalars["time/checkpoint"]


@pytest.mark.parametrize("every", [1, 4])
def test_a_report_is_about_the_steps_since_the_last_and_not_about_compilation(every):
    """A step takes 1 s, the first one 100 s, an evaluation after step 6 takes 50 s."""
    seconds, reports = [0.0], {}
    hook = ReportHook(every, [reports.__setitem__], cluster=Cluster(("CPU:0",)), batch_size=2)
    training = Training(0, 12, TrainingClock(lambda: seconds[0]))
    hook.begin(training)
    for step in range(1, 13):
        for _ in training.clock.counted("data", [None]):
            seconds[0] += 1.0 if step > 1 else 100.0
        training.steps_done = step
        hook.after_step(training, {"loss": np.float32(1)})
        if step == 6:
            with training.clock.stopped("evaluation"):
                seconds[0] += 50.0
    if every == 1:
        first = reports.pop(1)
        assert not [name for name in first if "time" in name or "per_second" in name]
    assert [*reports] == [step for step in range(2, 13) if step % every == 0]
    assert {each["step_time"] for each in reports.values()} == {1}
    evaluations = {step: each.get("time/evaluation") for step, each in reports.items()}
    assert {step: s for step, s in evaluations.items() if s} == {8 - 1 // every: 50 / every}
    assert {each["examples_per_second"] for each in reports.values()} == {2}


def test_memory_is_that_of_the_process_where_devices_are_virtual(run):
    scalars = read_scalars(run)
    assert 0.05 < scalars["memory_gb/process"][12] < 100
    assert scalars["memory_gb/process_peak"][12] > 0.9 * scalars["memory_gb/process"][12]


def test_the_mfu_is_what_its_text_says(run):
    text = read_texts(run)["mfu_formula", 0]
    forward = 2 * toy.BATCH * toy.D_IN * toy.D_OUT
    assert text.startswith(f"MFU = 3 x {forward} FLOP / (step time x ")
    peak = float(text.split("step time x ")[1].split(" FLOP/s")[0])
    scalars = read_scalars(run)
    for step, mfu in scalars["mfu"].items():
        assert mfu == pytest.approx(3 * forward / scalars["step_time"][step] / peak, rel=1e-4)


def test_the_page_of_the_layout_is_a_text(run):
    text = read_texts(run)["layout", 0]
    assert "    mesh data:2;model:2, layout batch:data;d_out:model" in text
    assert "w" in text


def test_virtual_devices_share_the_peak_of_their_host():
    flops, source = peak_of(Cluster(("CPU:0",)), "float32")
    _, source_of_four = peak_of(Cluster(("CPU:0",) * 4), "float32")
    assert source.startswith("1 x ") and "measured at the beginning" in source
    assert source_of_four.startswith("1 x ")
    assert 1e8 < flops < 1e14
    assert Utilization(100, 1000.0, "").at(0.5) == 3 * 100 / 500


def test_perplexity_and_learning_rate_and_norms_are_shown(trainer, tmp_path):
    assert trainer(schedule="train", train_steps=2, hparams="show_movement=true") == 0
    scalars = read_scalars(tmp_path / "run")
    for name in ("learning_rate", "gradient_norm", "update_norm", "parameter_norm"):
        assert scalars[name][2] > 0
    assert scalars["perplexity"][2] == pytest.approx(np.exp(scalars["loss"][2]), rel=1e-3)


def test_the_loss_scale_and_the_steps_left_out_are_shown(trainer, tmp_path):
    hparams = "activation_dtype=float16,on_nonfinite=skip"
    assert trainer(schedule="train", train_steps=2, hparams=hparams) == 0
    scalars = read_scalars(tmp_path / "run")
    assert scalars["loss_scale"][2] > 1
    assert scalars["skipped_steps"][2] + scalars["is_finite"][2] >= 1
