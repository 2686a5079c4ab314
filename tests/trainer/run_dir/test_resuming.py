"""After a crash, steps are repeated; TensorBoard and logs have each step only once."""

import contextlib
import json
import os
import time
from pathlib import Path
from unittest import mock

import pytest
from tensorboard.backend.event_processing import plugin_event_accumulator

from t2tp.atomic_file import is_unfinished, write_text
from t2tp.checkpoint import record_metrics
from t2tp.hparam import HParams
from t2tp.trainer.hooks.heartbeat import Heartbeat
from t2tp.trainer.hooks.json_log import JsonLog
from t2tp.trainer.run_dir import run_files
from tests.killed import killed_before_renaming
from tests.trainer import toy
from tests.trainer.hooks.events import read_log
from tests.trainer.tiny_experiment import experiment
from tests.trainer.toy_estimator import At, crash, estimator


def shown_steps(directory: Path, tag: str) -> list[int]:
    """Returns the steps of a scalar that TensorBoard shows."""
    accumulator = plugin_event_accumulator.EventAccumulator(str(directory))
    accumulator.Reload()
    return [event.step for event in accumulator.Tensors(tag)]


def wait_for_the_next_second() -> None:
    """Waits, so that the next event file has a later second in its name.

    TensorBoard reads event files in the order of their names. After the second, a name has a number
    that sorts as text: 10 comes before 9.
    """
    time.sleep(1 - time.time() % 1)


@pytest.mark.slow
def test_tensorboard_and_the_json_log_have_each_step_once(tmp_path):
    """The run is also moved, twice."""
    run, log = tmp_path / "run", tmp_path / "log.jsonl"
    crashes = ((run, 7), (tmp_path / "moved", 10), (tmp_path / "again", 99))
    for directory, last in crashes:
        if run != directory:
            run = run.rename(directory)
            wait_for_the_next_second()
        with contextlib.suppress(RuntimeError):
            estimator(run, log_json=str(log)).train(toy.inputs(), 12, [At(last, crash)])
        steps = [*range(1, min(last, 12) + 1)]
        assert shown_steps(run, "loss") == steps
        assert [event["step"] for event in read_log(log, "report")] == steps
    began = [(event["step"], event["run"]) for event in read_log(log, "began")]
    assert began == [(0, str(tmp_path / "run")), (4, str(crashes[1][0])), (8, str(run))]
    assert [event["step"] for event in read_log(log, "checkpoint")] == [4, 8, 12]
    assert read_log(log)[-1]["event"] == "ended"


@pytest.mark.slow
def test_evaluations_that_come_again_are_shown_once(tmp_path, data_dir):
    settings = {"local_eval_frequency": 1, "train_steps": 3, "eval_steps": 1}
    first = experiment(tmp_path, data_dir, **settings)
    first._evaluation.plateau = mock.Mock(side_effect=["", RuntimeError("crash")])
    with pytest.raises(RuntimeError, match="crash"):
        first.train_and_evaluate()
    assert shown_steps(tmp_path / "eval", "loss") == [1]
    experiment(tmp_path, data_dir, **settings).train_and_evaluate()
    assert shown_steps(tmp_path / "eval", "loss") == [1, 2, 3]


def test_what_a_killed_writer_has_left_is_gone_after_the_next_training(tmp_path):
    estimator(tmp_path).train(toy.inputs(), 4)
    clean = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    saved = tmp_path / "checkpoints/step-00000004"
    for write in (
        lambda: run_files.write(str(tmp_path), HParams(), {}),
        lambda: Heartbeat(str(tmp_path)).beat(4, "training"),
        lambda: record_metrics(saved, {"loss": 1.0}),
        lambda: write_text(tmp_path / "checkpoints/writable", ""),
    ):
        killed_before_renaming(write)
    left = [path for path in tmp_path.rglob("*") if is_unfinished(path)]
    assert len(left) == 4
    for path in left:  # An evaluator may still write a new file.
        if path.parent == saved:
            os.utime(path, (0, 0))
    estimator(tmp_path).train(toy.inputs(), 8)
    assert not [path for path in tmp_path.rglob("*") if is_unfinished(path)]
    assert clean <= {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}


def line(event: str, step: int, **fields: str) -> str:
    return json.dumps({"event": event, "step": step, "at": "t", **fields})


REPORTS = [line("report", 3), line("report", 5)]
OWN, GONE = ([line("began", 0, run=run), *REPORTS] for run in ("/run", "/gone"))
OTHER_KINDS = [line("diverged", 5), line("interrupted", 5), "a note"]
# The lines of a log, the step from which the run goes on, and the lines that are cut off.
LOGS = {
    "others have written since": ([*OWN, line("began", 0, run="/other")], 3, []),
    "somebody has written since": ([*OWN, line("began", 0, max_steps="9")], 3, []),
    "a new run": (GONE, 0, []),
    "a run that has logged its checkpoints elsewhere": ([*GONE, line("checkpoint", 3)], 2, []),
    "the same, at a step of the log": ([*GONE, line("checkpoint", 3)], 4, []),
    "lines of another kind": ([*OWN, *OTHER_KINDS, line("report", "9"), "unended"], 3, OWN[2:]),
}


@pytest.mark.parametrize("name", LOGS)
def test_only_the_runs_own_reports_are_cut_off_a_log(tmp_path, name):
    lines, step, cut_off = LOGS[name]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines) + "\n" * (lines[-1] != "unended"))
    JsonLog(str(path)).resume("/run", step)
    found = path.read_text().splitlines()
    kept = [each for each in lines if each not in cut_off]
    assert found[: len(kept)] == kept
    # A run of this directory without the checkpoint's line gets one.
    added = [json.loads(each) for each in found[len(kept) :]]
    assert [(each["event"], each["step"]) for each in added] == [("checkpoint", step)] * bool(
        cut_off
    )
