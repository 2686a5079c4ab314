"""What trials get: values that Optuna draws, flags that pass them, and devices of a host."""

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2tp.hparam import HParams
from t2tp.ranged_hparams import RangedHParams
from t2tp.trainer.search.search import Devices
from t2tp.trainer.search.study import flag_text, parameters, suggest


def _ranged() -> RangedHParams:
    ranged = RangedHParams("mine")
    ranged.set_float("rate", 1e-4, 1e-2, scale=ranged.LOG_SCALE)
    ranged.set_float("beta", 0.5, 0.999, scale=ranged.REVERSE_LOG_SCALE)
    ranged.set_int("layers", 1, 4)
    ranged.set_int("warmup", 10, 1000, scale=ranged.LOG_SCALE)
    ranged.set_categorical("kinds", [["a", "b"], ["c"], []])
    ranged.set_categorical("note", ["a, b", "c=d"])
    ranged.set_categorical("bias", [True, False])
    ranged.set_float("momentum", 0.1, 0.2, when={"bias": [True]})
    return ranged


@given(trial=st.integers(0, 10_000))
def test_what_is_stored_gives_the_same_values_again(trial):
    values = _ranged().sample_trial(trial)
    fixed = parameters(_ranged(), values)
    study = optuna.create_study()
    study.enqueue_trial(fixed)
    found = suggest(study.ask(), _ranged())
    assert found.keys() == values.keys()
    assert abs(found.pop("beta") - values.pop("beta")) < 1e-12
    assert found == values


@given(trial=st.integers(0, 10_000))
def test_the_flag_of_a_trial_sets_its_values(trial):
    values = _ranged().sample_trial(trial)
    numbers = dict(rate=0.0, beta=0.0, layers=0, warmup=0, momentum=0.15)
    hparams = HParams(**numbers, kinds=["x"], note="", bias=True)
    assert hparams.parse(flag_text(values)) == values


def test_each_trial_has_gpus_of_its_own():
    shares = Devices.of_each(2, None, ["0", "1", "2", "3"], range(8))
    assert [each.environment({})["CUDA_VISIBLE_DEVICES"] for each in shares] == ["0,1", "2,3"]
    shares = Devices.of_each(3, 1, ["0", "1", "2", "3"], range(8))
    assert [each.environment({})["CUDA_VISIBLE_DEVICES"] for each in shares] == ["0", "1", "2"]


def test_one_trial_has_the_whole_host_and_more_than_there_are_cores_share_all():
    assert Devices.of_each(1, None, ["0", "1"], range(4)) == [Devices()]
    assert Devices.of_each(4, None, [], range(2)) == [Devices()] * 4


REFUSED = [
    (4, None, ["0", "1"], "4 trials with 1 GPUs each need 4, and there are 2"),
    (2, 2, ["0", "1", "2"], "2 trials with 2 GPUs each need 4, and there are 3"),
    (2, 3, [], "2 trials with 3 cores each need 6, and there are 4"),
]


@pytest.mark.parametrize(("trials", "each", "gpus", "says"), REFUSED)
def test_too_few_devices_are_refused(trials, each, gpus, says):
    with pytest.raises(ValueError, match=says):
        Devices.of_each(trials, each, gpus, range(4))
