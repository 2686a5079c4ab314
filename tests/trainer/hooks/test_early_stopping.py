"""Early stopping finds the plateau of a metric in the record of evaluations."""

import json
import math
import os
from types import SimpleNamespace

import pytest
from absl import logging

from t2tp.checkpoint import BestMetric
from t2tp.processes.cluster import ALONE
from t2tp.trainer.errors import UsageError
from t2tp.trainer.eval_config import EarlyStopping
from t2tp.trainer.evaluations import SplitEvaluation
from t2tp.trainer.run_dir.evaluation_record import EvaluationRecord

# Losses of evaluations every 10 steps, and whether they have a plateau of 20 steps and 0.1.
CURVES = {
    "nothing yet": ([], False),
    "too short": ([5.0, 5.0], False),
    "flat": ([5.0, 5.0, 5.0], True),
    "falling": ([5.0, 4.5, 4.0], False),
    "falling too slowly": ([5.0, 4.97, 4.94], True),
    "rising": ([5.0, 6.0, 7.0], True),
    "better once, and then worse": ([5.0, 4.5, 5.5], False),
    "flat after a fall": ([9.0, 5.0, 5.0, 5.0], True),
}


@pytest.mark.parametrize("name", CURVES)
def test_a_plateau_is_what_tensor2tensor_calls_one(name):
    losses, is_plateau = CURVES[name]
    by_step = {10 * n: {"loss": loss} for n, loss in enumerate(losses, start=1)}
    assert bool(EarlyStopping(20, delta=0.1).plateau(by_step)) == is_plateau
    rising = {step: {"accuracy": -m["loss"]} for step, m in by_step.items()}
    stopping = EarlyStopping(20, "accuracy", delta=0.1, minimize=False)
    assert bool(stopping.plateau(rising)) == is_plateau


def test_the_reference_is_the_last_evaluation_that_is_old_enough():
    by_step = {1: {"loss": 9.0}, 5: {"loss": 3.0}, 11: {"loss": 3.0}}
    assert "loss was 3.0000 at step 5" in EarlyStopping(6).plateau(by_step)
    assert EarlyStopping(10).plateau(by_step) == ""
    assert EarlyStopping(6, delta=0.0).plateau(by_step)  # Any improvement counts, and 3.0 is none.
    assert EarlyStopping(6, delta=0.0).plateau(by_step | {12: {"loss": 2.999}}) == ""


def test_the_record_keeps_the_later_of_two_evaluations_of_a_step(tmp_path):
    record = EvaluationRecord(tmp_path / "eval")
    assert record.by_step() == {}
    for step, loss in ((4, 3.0), (8, 2.0), (4, 2.5)):
        record.add(step, {"loss": loss})
    assert record.by_step() == {4: {"loss": 2.5}, 8: {"loss": 2.0}}
    lines = (tmp_path / "eval/eval.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [8, 4]


BAD_LINES = [
    b'{"step": 8, "metr',
    b"",
    pytest.param(10**5 * b"[", id="nested"),
    b"\xff\xfe",
    b'{"step": "8", "metrics": {"loss": 1.0}}',
    b'{"step": 8, "metrics": [1.0]}',
    b'{"step": 8, "metrics": {"loss": null}}',
]


@pytest.mark.parametrize("bad", BAD_LINES)
def test_lines_that_are_no_evaluations_are_skipped_with_a_warning(tmp_path, monkeypatch, bad):
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: warnings.append(text % args))
    path = tmp_path / "eval.jsonl"
    EvaluationRecord(tmp_path).add(4, {"loss": 3.0})
    path.write_bytes(path.read_bytes() + bad + b"\n")
    EvaluationRecord(tmp_path).add(12, {"loss": 2.0})
    before = path.read_bytes()
    assert list(EvaluationRecord(tmp_path).by_step()) == [4, 12]
    assert warnings == [f"Skipping line 2 of {path}: not an evaluation"]
    assert path.read_bytes() == before


def test_what_somebody_else_has_written_is_not_cut_off(tmp_path):
    (tmp_path / "eval.jsonl").write_text("a note, without an end")
    EvaluationRecord(tmp_path).add(4, {"loss": 3.0})
    assert (tmp_path / "eval.jsonl").read_text().startswith("a note, without an end\n")
    assert list(EvaluationRecord(tmp_path).by_step()) == [4]


def test_a_record_that_cannot_be_read_is_named(tmp_path):
    os.mkfifo(tmp_path / "eval.jsonl")
    with pytest.raises(UsageError, match=r"eval\.jsonl cannot be read"):
        EvaluationRecord(tmp_path).by_step()


def test_no_number_is_never_the_best(tmp_path, monkeypatch):
    evaluation = SplitEvaluation.__new__(SplitEvaluation)
    evaluation.record = EvaluationRecord(tmp_path)
    for step, loss in enumerate([math.nan, 3.0, 2.0], start=1):
        evaluation.record.add(step, {"loss": loss})
    said = []
    monkeypatch.setattr(logging, "info", lambda text, *given: said.append(text % given))
    evaluation.log_best(BestMetric("loss", True))
    evaluation.log_best(BestMetric("loss", False))
    assert said == [
        "best loss 2.0000 at step 3, of 3 evaluations",
        "best loss 3.0000 at step 2, of 3 evaluations",
    ]


def test_evaluations_of_later_steps_do_not_stop_a_resumed_run(tmp_path):
    evaluation = SplitEvaluation.__new__(SplitEvaluation)
    evaluation.record = EvaluationRecord(tmp_path)
    for step in (1, 8, 20):
        evaluation.record.add(step, {"loss": 3.0})
    evaluation._spec = SimpleNamespace(evaluation=SimpleNamespace(early_stopping=EarlyStopping(9)))
    for steps_done, stops in ((8, False), (20, True)):
        evaluation._estimator = SimpleNamespace(steps_done=steps_done, connect=lambda: ALONE)
        assert bool(evaluation.plateau()) == stops
