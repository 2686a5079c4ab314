"""A non-finite step ends the training, and its results are not saved."""

import contextlib
import math
import re

import numpy as np
import pytest

from t2tp import checkpoint
from t2tp.checkpoint import Checkpoint
from t2tp.checkpoint.inspection import differences
from t2tp.trainer.hooks.hook import Training
from t2tp.trainer.hooks.json_log import JsonLog
from t2tp.trainer.hooks.nonfinite import NonfiniteHook, NonfiniteStepError, TrainingDivergedError
from t2tp.trainer.run_config import RunConfig
from tests.checkpoint.samples import values_in
from tests.trainer import toy
from tests.trainer.hooks.events import read_log
from tests.trainer.toy_estimator import estimator, step_directory


class Poisoned(toy.Stream):
    """Batches with a NaN in one step (counted from 1), which is absent after `cures` reads."""

    def __init__(self, step: int, cures: int = 1000) -> None:
        super().__init__()
        self._bad, self._left = step - 1, cures

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        batch = super().__getitem__(step)
        if step == self._bad and self._left:
            self._left -= 1
            batch["x"][0, 0] = np.nan
        return batch


def saved(directory, step):
    return Checkpoint(step_directory(directory, step))


# The last case has its bad step at the end of the training.
BAD_STEPS = [
    ("one device", 8, 1),
    ("both", 3, 1),
    ("both", 7, 1),
    ("one device", 7, 3),
    ("both", 12, 3),
]


@pytest.mark.parametrize(("mesh", "bad", "size"), BAD_STEPS)
def test_it_stops_and_the_latest_checkpoint_is_of_the_step_before(tmp_path, mesh, bad, size):
    settings = {"log_json": str(tmp_path / "log"), "iterations_per_loop": size}
    poisoned = estimator(tmp_path / "bad", mesh, **settings)
    said = rf"step {bad} is not finite: loss nan. .* is the activation x. .* step {bad - 1}, before"
    with pytest.raises(TrainingDivergedError, match=said):
        poisoned.train(toy.inputs(Poisoned(bad)), 12)
    steps = checkpoint.all_steps(tmp_path / "bad/checkpoints")
    assert steps == [*range(4, bad - 1, 4), bad - 1]
    estimator(tmp_path / "good", mesh).train(toy.inputs(), bad - 1)
    assert not differences(*(saved(tmp_path / run, bad - 1) for run in ("good", "bad")))
    assert [event["step"] for event in read_log(tmp_path / "log", "diverged")] == [bad]


def test_a_step_that_is_finite_when_it_is_done_again_is_the_machines_fault(tmp_path):
    with pytest.raises(TrainingDivergedError, match="Replayed, the same step is finite"):
        estimator(tmp_path).train(toy.inputs(Poisoned(6, cures=1)), 12)
    assert checkpoint.all_steps(tmp_path / "checkpoints")[-1] == 5


def test_it_goes_on_if_told_to(tmp_path):
    estimator(tmp_path, hparams={"on_nonfinite": "ignore"}).train(toy.inputs(Poisoned(3)), 5)
    assert np.isnan(values_in(saved(tmp_path, 5))["w"]).any()


WRONG = {
    "no steps": ({"profile_steps": "100"}, "profile_steps is '100', and must be FIRST:LAST"),
    "backwards": ({"profile_steps": "5:3"}, "profile_steps is '5:3'"),
    "no time": ({"grace_seconds": 0.0}, "grace_seconds is 0.0"),
    "too much time": ({"grace_seconds": math.inf}, "grace_seconds is inf"),
    "time that is no number": ({"grace_seconds": math.nan}, "grace_seconds is nan"),
    "never": ({"histogram_steps": 0}, "histogram_steps is 0"),
    "all the time": ({"save_checkpoints_secs": 0}, "save_checkpoints_secs is 0, and must be above"),
    "two clocks": ({"save_checkpoints_steps": 1, "save_checkpoints_secs": 1.0}, "choose one"),
}


@pytest.mark.parametrize(("settings", "said"), WRONG.values(), ids=WRONG)
def test_settings_that_cannot_be_meant_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        RunConfig("run", **settings)


FIRST = "loss 6.2.*, gradient norm nan. The first tensor that is not finite is the gradient "
DTYPES = [("float32", FIRST), ("float16", "loss nan")]


@pytest.mark.parametrize(("dtype", "said"), DTYPES)
def test_the_trainer_names_the_first_bad_tensor(trainer, tmp_path, capfd, dtype, said):
    changes = f"learning_rate_constant=1e38,activation_dtype={dtype}"
    assert trainer(schedule="train", hparams=changes) == 2
    assert re.search(f"t2tp_trainer: step 2 is not finite: {said}", capfd.readouterr().err)
    assert checkpoint.all_steps(tmp_path / "run/checkpoints") == [1]


REFUSED = [
    (1.0, math.inf, 2.0, False),  # A smaller scale may repair the gradients ...
    (1.0, math.inf, 1.0, True),  # ... but there is none,
    (math.nan, math.inf, 2.0**15, True),  # ... or it does not change the loss.
    (math.nan, 1.0, None, True),  # skip_step_sigma skips spikes only.
]


@pytest.mark.parametrize(("loss", "norm", "scale", "stops"), REFUSED)
def test_it_stops_where_skipping_and_scaling_cannot_help(loss, norm, scale, stops):
    shown = {"loss": loss, "scalars/gradient_norm": norm, "scalars/skipped_steps": 1.0}
    shown |= {} if scale is None else {"scalars/loss_scale": scale}
    hook, training = NonfiniteHook(True, JsonLog(), 0), Training(0, 5)
    hook.begin(training)
    training.steps_done = 1
    hook.after_step(training, shown)
    with pytest.raises(NonfiniteStepError) if stops else contextlib.nullcontext():
        training.confirm()


def test_steps_can_be_left_out_and_are_counted(trainer, tmp_path, capfd):
    log = tmp_path / "log.jsonl"
    bad = {"hparams": "learning_rate_constant=1e38", "on_nonfinite": "skip", "log_json": log}
    assert trainer(schedule="train", train_steps=4, **bad) == 0
    assert "skipped step 2: loss 6.2" in capfd.readouterr().err
    assert [event["skipped_steps"] for event in read_log(log, "skipped")] == [1, 2, 3]
    assert checkpoint.all_steps(tmp_path / "run/checkpoints") == [4]
