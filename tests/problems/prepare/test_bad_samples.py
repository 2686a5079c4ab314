"""Bad samples are reported, and skipped if there are few; finished shards are kept."""

import pytest

from t2tp.problems.data.sample import BadSampleError, SkippedSampleError
from t2tp.problems.problem import TRAIN
from tests.problems.prepare.own_pairs import OwnPairs, SubwordPairs, files_of, some_samples

GOOD = some_samples("train", 200)
LONE = {"inputs": "a \udc80", "targets": "half a character"}
SENTENCE = (
    "own_pairs, train, sample 200: 'utf-8' codec can't encode character '\\udc80' in position 2: "
    "surrogates not allowed"
)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_finished_shards_stay_and_the_sample_is_named(tmp_path, num_workers):
    bad = OwnPairs([*GOOD * 6, LONE, *GOOD])  # the default limit allows one here
    with pytest.raises(BadSampleError) as raised:
        bad.prepare(tmp_path, num_shards=7, num_workers=num_workers, max_bad_samples=0)
    assert str(raised.value) == SENTENCE.replace("sample 200", "sample 1200")
    partial = tmp_path / ".own_pairs.partial"
    left = {path.name: path.stat().st_ino for path in partial.glob("train-*.json")}
    assert left
    made = bad.prepare(tmp_path, num_shards=7)
    assert made.splits["train"].skipped == {"bad": 1}
    assert {name: (bad.directory(tmp_path) / name).stat().st_ino for name in left} == left


def test_bad_samples_are_left_out_counted_and_named(tmp_path, caplog):
    problem = OwnPairs([*GOOD, LONE])
    made = problem.prepare(tmp_path / "data", max_bad_samples=1)
    assert made.splits["train"].examples == 200
    assert "200 examples" in made.summary() and "1 skipped (bad)" in made.summary()
    assert f"left out as it cannot be used: {SENTENCE}" in caplog.text


def test_there_may_be_as_many_as_is_said(tmp_path):
    problem = OwnPairs([*GOOD, LONE, LONE, LONE])
    assert problem.prepare(tmp_path / "a", max_bad_samples=3).splits["train"].skipped["bad"] == 3
    with pytest.raises(BadSampleError, match="3 samples are bad, and at most 2 may be; the last: "):
        problem.prepare(tmp_path / "b", max_bad_samples=2)
    with pytest.raises(BadSampleError, match="^own_pairs, train, sample 20[012]: 'utf-8' codec"):
        problem.prepare(tmp_path / "c")
    with pytest.raises(ValueError, match="max_bad_samples is -1, and must be at least 0"):
        problem.prepare(tmp_path / "d", max_bad_samples=-1)


def test_bad_samples_before_and_after_an_interruption_are_counted_together(tmp_path):
    problem = OwnPairs([LONE, LONE, *GOOD, LONE])
    with pytest.raises(BadSampleError, match="2 samples are bad, and at most 1"):
        problem.prepare(tmp_path / "data", num_shards=20, max_bad_samples=1)
    with pytest.raises(BadSampleError, match="3 samples are bad, and at most 2"):
        problem.prepare(tmp_path / "data", num_shards=20, max_bad_samples=2)
    problem.prepare(tmp_path / "data", num_shards=20, max_bad_samples=3)
    problem.prepare(tmp_path / "whole", num_shards=20, max_bad_samples=3)
    assert files_of(problem, tmp_path / "data") == files_of(problem, tmp_path / "whole")


def test_the_vocabulary_is_made_without_bad_samples(tmp_path):
    problem = SubwordPairs([LONE, *GOOD])
    problem.prepare(tmp_path / "data", max_bad_samples=1)
    SubwordPairs(GOOD).prepare(tmp_path / "good")
    first, second = (
        (problem.directory(tmp_path / name) / "vocabulary.model").stat().st_size
        for name in ("data", "good")
    )
    assert first == second


CASES = {
    "no 'inputs', only 'input', 'targets'": {"input": "a", "targets": "b"},
    "'inputs' is 7 .*int": {"inputs": 7, "targets": "b"},
    "'targets' is None .*NoneType": {"inputs": "a", "targets": None},
}


@pytest.mark.parametrize("sentence", CASES)
def test_samples_that_are_no_samples_are_named_with_their_problem(tmp_path, sentence):
    with pytest.raises(BadSampleError, match=f"^own_pairs, train, sample 5: .*{sentence}"):
        OwnPairs([*GOOD[:5], CASES[sentence]]).prepare(tmp_path)


def test_whatever_a_problem_raises_is_said_with_its_line(tmp_path, monkeypatch):
    def samples(self, split, directory, tmp_dir):
        class Broken(list):
            def __getitem__(self, number):
                return {}[number].nothing if number == 5 else GOOD[number]

        return Broken(GOOD[:7])

    monkeypatch.setattr(OwnPairs, "samples", samples)
    with pytest.raises(BadSampleError, match=r"train, sample 5: KeyError: 5 \(.*samples.py, line "):
        OwnPairs().prepare(tmp_path)


def test_samples_that_are_no_list_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(OwnPairs, "samples", lambda *places: None)
    with pytest.raises(ValueError, match="own_pairs: samples.'train'. returned None; give a"):
        OwnPairs().prepare(tmp_path)


def test_a_reason_to_skip_is_no_fault(tmp_path, monkeypatch):
    def texts(self, sample):
        if sample["inputs"].endswith("7"):
            raise SkippedSampleError("sevens")
        return [*sample.values()]

    monkeypatch.setattr(SubwordPairs, "texts", texts)
    assert SubwordPairs(GOOD).prepare(tmp_path).splits[TRAIN].examples == 200
