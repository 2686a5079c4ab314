"""After a crash steps come again: whoever shows a run shows each of them once."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

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
from tests.trainer.tiny_experiment import experiment
from tests.trainer.toy_estimator import Crash, estimator


def shown_steps(directory: Path, tag: str) -> list[int]:
    """The steps that TensorBoard shows of a scalar."""
    accumulator = plugin_event_accumulator.EventAccumulator(str(directory))
    accumulator.Reload()
    return [event.step for event in accumulator.Tensors(tag)]


def wait_for_the_next_second() -> None:
    """TensorBoard reads files by name, which has the second at which a run began.

    Of files of one second it reads those first whose number sorts first as text: 10 before 9.
    """
    time.sleep(1 - time.time() % 1)


def events(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_tensorboard_and_the_json_log_have_each_step_once(tmp_path):
    """Also if the run is moved, once and again."""
    run, log = tmp_path / "run", tmp_path / "log.jsonl"
    crashes = ((run, 7), (tmp_path / "moved", 10), (tmp_path / "again", 99))
    for directory, crash in crashes:
        if run != directory:
            run = run.rename(directory)
            wait_for_the_next_second()
        with contextlib.suppress(RuntimeError):
            estimator(run, log_json=str(log)).train(toy.inputs(), 12, [Crash(crash)])
        steps = [*range(1, min(crash, 12) + 1)]
        assert shown_steps(run, "loss") == steps
        reports = [event["step"] for event in events(log) if event["event"] == "report"]
        assert reports == steps
    began = [(event["step"], event["run"]) for event in events(log) if event["event"] == "began"]
    assert began == [(0, str(tmp_path / "run")), (4, str(crashes[1][0])), (8, str(run))]
    assert [e["step"] for e in events(log) if e["event"] == "checkpoint"] == [4, 8, 12]
    assert events(log)[-1]["event"] == "ended"


@pytest.mark.slow
def test_evaluations_that_come_again_are_shown_once(tmp_path, data_dir):
    settings = {"local_eval_frequency": 1, "train_steps": 3, "eval_steps": 1}
    first = experiment(tmp_path, data_dir, **settings)
    evaluation, count = first._evaluation("validation"), [0]

    def crash_at_the_second(*args: object) -> str:
        count[0] += 1
        if count[0] == 2:
            raise RuntimeError("crash")
        return ""

    first._early_stopping, evaluation.plateau = True, lambda stopping: crash_at_the_second()
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
    for path in left:  # An evaluator's may be one that it still writes.
        if path.parent == saved:
            os.utime(path, (0, 0))
    estimator(tmp_path).train(toy.inputs(), 8)
    assert not [path for path in tmp_path.rglob("*") if is_unfinished(path)]
    assert clean <= {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}


OTHERS = [
    b'{"event": "began", "step": 0, "at": "t", "run": "/other"}\n',
    b'{"event": "began", "step": 0, "at": "t", "max_steps": 9}\n',
]


@pytest.mark.parametrize("other", OTHERS)
def test_a_log_that_others_have_written_into_is_not_cut_back(tmp_path, other):
    path = tmp_path / "log.jsonl"
    JsonLog(str(path)).write("began", 0, {"run": "/run"})
    JsonLog(str(path)).write("report", 5)
    path.write_bytes(before := path.read_bytes() + other)
    JsonLog(str(path)).resume("/run", 3)
    assert path.read_bytes() == before


def test_the_log_of_a_run_that_is_gone_is_not_cut_back_for_another(tmp_path):
    path = tmp_path / "log.jsonl"
    log = JsonLog(str(path))
    log.write("began", 0, {"run": "/gone"})
    for event, step in (("report", 3), ("checkpoint", 3), ("report", 5)):
        log.write(event, step)
    before = path.read_bytes()
    for step in (0, 2, 4):  # A new run, and one that has logged its checkpoints elsewhere.
        JsonLog(str(path)).resume("/run", step)
        assert path.read_bytes() == before


def test_lines_of_another_kind_stay(tmp_path):
    path = tmp_path / "log.jsonl"
    log = JsonLog(str(path))
    log.write("began", 0, {"run": "/run"})
    for event, step in (("report", 3), ("report", 5), ("diverged", 5), ("interrupted", 5)):
        log.write(event, step)
    with path.open("ab") as file:
        file.write(b'a note\n{"event": "report", "step": "9"}\nunfinished')
    JsonLog(str(path)).resume("/run", 3)
    lines = path.read_text().splitlines()
    assert lines[-3:] == ["a note", '{"event": "report", "step": "9"}', "unfinished"]
    said = [(each["event"], each["step"]) for each in map(json.loads, lines[:-3])]
    assert said == [("began", 0), ("report", 3), ("diverged", 5), ("interrupted", 5)]
