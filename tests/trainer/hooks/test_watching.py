"""Lines and a heartbeat for programs that watch a run."""

import json
import math
import os
import socket
import time

import pytest

from t2tp.trainer.errors import UsageError
from t2tp.trainer.hooks.heartbeat import BEAT_SECONDS, Heartbeat
from t2tp.trainer.hooks.hook import Hook
from t2tp.trainer.hooks.json_log import JsonLog
from tests.trainer import toy
from tests.trainer.hooks.events import read_log as lines
from tests.trainer.toy_estimator import estimator


def test_each_event_is_a_line_with_its_time(tmp_path):
    log = JsonLog(str(tmp_path / "new/log.jsonl"))
    log.write("report", 3, {"loss": 1.5})
    log.write("checkpoint", 3)
    report, saved = lines(tmp_path / "new/log.jsonl")
    assert (report["event"], report["step"], report["loss"]) == ("report", 3, 1.5)
    assert report["at"] <= saved["at"]
    assert saved.keys() == {"event", "step", "at"}


def test_a_run_that_goes_on_adds_lines_and_cuts_off_what_a_crash_has_left(tmp_path):
    path = tmp_path / "log.jsonl"
    JsonLog(str(path)).write("began", 0)
    with path.open("a") as file:
        file.write('{"event": "rep')
    JsonLog(str(path)).write("began", 7)
    assert [line["step"] for line in lines(path)] == [0, 7]


def test_what_json_has_no_number_for_is_a_text(tmp_path):
    path = tmp_path / "log.jsonl"
    JsonLog(str(path)).write("report", 1, {"loss": math.nan, "norm": math.inf, "rate": -math.inf})
    (line,) = lines(path)
    assert (line["loss"], line["norm"], line["rate"]) == ("nan", "inf", "-inf")


def test_a_dash_is_stdout(capsys):
    JsonLog("-").write("report", 1)
    assert json.loads(capsys.readouterr().out)["event"] == "report"


@pytest.mark.parametrize("device", ["/dev/full", "/dev/zero"])
def test_a_device_is_not_read_to_its_end(device):
    log = JsonLog(device)
    if device == "/dev/full":
        with pytest.raises(UsageError, match="log_json=/dev/full cannot be written: .*No space"):
            log.write("report", 1)
    else:
        log.write("report", 1)


def test_an_open_file_that_is_cut_back_is_written_on(tmp_path):
    """This happens if a process first evaluates and then trains."""
    path = tmp_path / "log.jsonl"
    killed = JsonLog(str(path))
    killed.write("began", 0, {"run": "run"})
    killed.write("report", 9)
    log = JsonLog(str(path))
    log.write("evaluation", 5)
    log.resume("run", 5)
    log.write("began", 5, {"run": "run"})
    assert [(line["event"], line["step"]) for line in lines(path)] == [
        ("began", 0),
        ("evaluation", 5),
        ("checkpoint", 5),  # The process was killed before it wrote this line.
        ("began", 5),
    ]


def read(directory):
    return json.loads((directory / "heartbeat.json").read_text("utf-8"))


def test_it_beats_only_every_few_seconds(tmp_path):
    now = [0.0]
    heartbeat = Heartbeat(str(tmp_path), clock=lambda: now[0])
    for step, seconds in enumerate((0.0, 0.1, BEAT_SECONDS - 0.1, BEAT_SECONDS, 0.0)):
        now[0] = seconds if step < 4 else BEAT_SECONDS + 0.1
        heartbeat.beat(step, "training")
        assert read(tmp_path)["step"] == (0, 0, 0, 3, 3)[step]


def test_it_names_the_process_and_what_it_does(tmp_path):
    before = time.time()
    Heartbeat(str(tmp_path)).beat(7, "training")
    said = read(tmp_path)
    assert before <= said["time"] <= time.time()
    assert (said["step"], said["state"]) == (7, "training")
    assert (said["pid"], said["host"]) == (os.getpid(), socket.gethostname())


class Notes(Hook):
    """Records the heartbeat before each step."""

    def __init__(self, directory):
        self.directory, self.states = directory, []

    def before_step(self, training):
        self.states.append(read(self.directory)["state"])


def test_a_training_beats_from_before_its_first_step_to_its_end(tmp_path):
    notes = Notes(tmp_path)
    estimator(tmp_path).train(toy.inputs(), 3, [notes])
    assert notes.states == ["training"] * 3
    assert (read(tmp_path)["state"], read(tmp_path)["step"]) == ("ended", 3)
