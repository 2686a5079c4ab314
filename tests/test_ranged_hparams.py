"""Ranges, and the points that are sampled from them."""

import math

import pytest

import t2tp.hparams  # noqa: F401 (registers sets)
from t2tp.hparam import HParams
from t2tp.ranged_hparams import RangedHParams


def ranged(name: str = "mine") -> RangedHParams:
    made = RangedHParams(name)
    made.set_float("rate", 1e-4, 1e-2, scale=made.LOG_SCALE)
    made.set_float("dropout", 0.0, 0.3)
    made.set_float("beta", 0.5, 0.999, scale=made.REVERSE_LOG_SCALE)
    made.set_int("layers", 1, 4)
    made.set_discrete("width", [32, 64])
    made.set_categorical("kind", ["adam", "sgd"])
    return made


def test_a_trial_is_always_the_same_point_and_others_are_other_points():
    assert ranged().sample_trial(3) == ranged().sample_trial(3)
    points = [tuple(ranged().sample_trial(trial).values()) for trial in range(20)]
    assert len(set(points)) == 20
    assert ranged("other").sample_trial(3) != ranged().sample_trial(3)


def test_another_range_changes_no_other_value():
    more = ranged()
    more.set_float("momentum", 0.0, 0.9)
    sampled = more.sample_trial(5)
    assert 0.0 <= sampled.pop("momentum") <= 0.9
    assert sampled == ranged().sample_trial(5)


def test_points_fill_their_ranges_on_their_scales():
    points = [ranged().sample_trial(trial) for trial in range(2000)]
    assert {p["layers"] for p in points} == {1, 2, 3, 4}
    assert {p["width"] for p in points} == {32, 64}
    assert {p["kind"] for p in points} == {"adam", "sgd"}
    assert all(1e-4 <= p["rate"] <= 1e-2 and 0.5 <= p["beta"] <= 0.999 for p in points)

    def share(name: str, below: float) -> float:
        return sum(p[name] < below for p in points) / len(points)

    assert share("dropout", 0.15) == pytest.approx(0.5, abs=0.05)
    assert share("rate", 1e-3) == pytest.approx(0.5, abs=0.05)  # half of the decades
    assert share("beta", 0.75) == pytest.approx(0.42, abs=0.05)  # sparser at the lower end


def test_whole_numbers_on_a_logarithmic_scale_are_in_the_range():
    made = RangedHParams("whole")
    made.set_int("steps", 1, 1000, scale=made.LOG_SCALE)
    sampled = [made.sample_trial(trial)["steps"] for trial in range(3000)]
    assert (min(sampled), max(sampled)) == (1, pytest.approx(1000, abs=20))
    assert sum(steps <= 31 for steps in sampled) / 3000 == pytest.approx(
        math.log(32) / math.log(1001), abs=0.05
    )


def test_a_trial_sets_hparams_or_nothing():
    numbers = dict(rate=0.0, dropout=0.0, beta=0.0, layers=2, width=16)
    hparams = HParams(**numbers, kind="sgd")
    sampled = ranged().apply(1, hparams)
    assert sampled == hparams.values() == ranged().sample_trial(1)
    for lacking, says in (
        (HParams(rate=0.0), "samples dropout, which the hparams do not have"),
        (HParams(**numbers, kind=3), "kind: expected int"),
    ):
        before = lacking.copy()
        with pytest.raises(ValueError, match=says):
            ranged().apply(1, lacking)
        assert lacking == before


REFUSED = [
    (lambda r: r.set_float("rate", 0.0, 1.0), "two ranges of rate"),
    (lambda r: r.set_float("x", 2.0, 1.0), "range of x is empty: from 2.0 to 1.0"),
    (lambda r: r.set_float("x", 0.0, 1.0, scale="log"), "must be above 0"),
    (lambda r: r.set_float("x", 1.0, 2.0, scale="lgo"), "did you mean log"),
    (lambda r: r.set_discrete("x", []), "range of x is empty"),
    (lambda r: r.sample_trial(-1), "counted from 0"),
    (lambda r: r.set_int("x", 0, 1, when={"kinds": ["adam"]}), "no choice before it: did you mean"),
    (lambda r: r.set_int("x", 0, 1, when={"rate": [0.5]}), "depends on rate, which is no choice"),
    (
        lambda r: r.set_int("x", 0, 1, when={"kind": ["Adam"]}),
        "kind='Adam', which is not in: 'adam",
    ),
]


@pytest.mark.parametrize(("call", "says"), REFUSED)
def test_what_cannot_be_is_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call(ranged())


def conditional() -> RangedHParams:
    made = RangedHParams("conditional")
    made.set_categorical("kind", ["adam", "sgd", "momentum"])
    made.set_float("momentum", 0.5, 0.9, when={"kind": ["momentum"]})
    made.set_discrete("beta", [0.9, 0.99], when={"kind": ["adam"]})
    made.set_int("warmup", 1, 100, scale=made.LOG_SCALE, when={"kind": ["adam"], "beta": [0.99]})
    return made


def test_ranges_are_drawn_only_where_their_conditions_hold():
    drawn = [frozenset(conditional().sample_trial(trial)) for trial in range(100)]
    assert set(drawn) == {
        frozenset({"kind", "momentum"}),
        frozenset({"kind"}),
        frozenset({"kind", "beta"}),
        frozenset({"kind", "beta", "warmup"}),
    }


def test_a_grid_has_every_point_once():
    points = conditional().grid(3)
    assert points == [
        {"kind": "adam", "beta": 0.9},
        {"kind": "adam", "beta": 0.99, "warmup": 1},
        {"kind": "adam", "beta": 0.99, "warmup": 10},
        {"kind": "adam", "beta": 0.99, "warmup": 100},
        {"kind": "sgd"},
        {"kind": "momentum", "momentum": 0.5},
        {"kind": "momentum", "momentum": 0.7},
        {"kind": "momentum", "momentum": 0.9},
    ]
