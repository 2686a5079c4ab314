"""Values that Optuna draws, and the flags that pass them to a trial."""

import optuna
from hypothesis import given
from hypothesis import strategies as st

from t2tp.hparam import HParams
from t2tp.ranged_hparams import RangedHParams
from t2tp.trainer.search.ranges import flag_text, parameters, suggest


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
