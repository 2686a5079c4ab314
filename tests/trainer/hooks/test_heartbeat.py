"""A supervisor sees by the heartbeat whether the training loop is running."""

import json
import os
import socket
import time

from t2tp.trainer.hooks.heartbeat import BEAT_SECONDS, Heartbeat
from t2tp.trainer.hooks.hook import Hook
from tests.trainer import toy
from tests.trainer.toy_estimator import estimator


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
