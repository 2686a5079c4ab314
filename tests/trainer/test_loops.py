"""Trainings with several steps in a launch (`iterations_per_loop`)."""

import os
import random
import signal
import sys
import threading

import pytest

from t2tp import checkpoint
from t2tp.checkpoint import Checkpoint
from t2tp.checkpoint.inspection import differences
from t2tp.program.program import Program
from t2tp.trainer.loops import prefetched
from t2tp.trainer.processes.interrupt import TrainingInterrupted
from tests.patience import PATIENCE
from tests.trainer import toy
from tests.trainer.toy_estimator import At, Note, estimator, losses, step_directory
from tests.warm_processes import WarmProcess

KILLED_STEPS = 3000


def assert_same_values(one, other, step):
    """Asserts that two runs have the same checkpoint of a step, bit for bit."""
    assert not differences(*(Checkpoint(step_directory(run, step)) for run in (one, other)))


@pytest.fixture
def launches(monkeypatch):
    """The (first step, number of steps) of each launch."""
    begun, loop = [], Program.loop

    def noted(self, batches, step=0, size=1):
        begun.append((step, len(batches)))
        return loop(self, batches, step, size)

    monkeypatch.setattr(Program, "loop", noted)
    return begun


@pytest.mark.parametrize("mesh", ["one device", "both"])
def test_hooks_losses_and_checkpoints_are_those_of_single_steps(tmp_path, mesh, launches):
    notes = [Note(), Note()]
    for size, note in zip((1, 4), notes, strict=True):
        settings = {"save_checkpoints_steps": 6, "iterations_per_loop": size}
        del launches[:]
        estimator(tmp_path / str(size), mesh, **settings).train(toy.inputs(), 15, [note])
    assert launches == [(0, 4), (4, 2), (6, 2), (8, 4), (12, 3)]
    assert notes[0].calls == notes[1].calls
    assert losses(tmp_path / "1") == losses(tmp_path / "4")
    assert checkpoint.all_steps(tmp_path / "4/checkpoints") == [6, 12, 15]
    for step in (6, 12, 15):
        assert_same_values(tmp_path / "1", tmp_path / "4", step)


def test_a_signal_finishes_the_launch_and_saves_its_last_step(tmp_path):
    interrupt = At(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    looped = estimator(tmp_path / "stopped", iterations_per_loop=3)
    with pytest.raises(TrainingInterrupted, match="interrupted after step 6, which is saved"):
        looped.train(toy.inputs(), 12, [interrupt])
    estimator(tmp_path / "stopped", iterations_per_loop=3).train(toy.inputs(), 12)
    estimator(tmp_path / "straight").train(toy.inputs(), 12)
    assert losses(tmp_path / "stopped") == losses(tmp_path / "straight")


def test_saving_by_the_clock_waits_for_the_end_of_the_launch(tmp_path):
    by_clock = {"save_checkpoints_steps": None, "save_checkpoints_secs": 1e-6}
    estimator(tmp_path, iterations_per_loop=4, **by_clock).train(toy.inputs(), 10)
    assert checkpoint.all_steps(tmp_path / "checkpoints") == [4, 8, 10]


def train_until_killed() -> None:
    """Trains in a directory; a thread kills the process some seconds after a step."""
    directory, step, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    killer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
    killer.daemon = True
    settings = {"save_checkpoints_steps": 30, "log_step_count_steps": 1000}
    trained = estimator(directory, "one device", xla=True, iterations_per_loop=8, **settings)
    trained.train(toy.inputs(), KILLED_STEPS, [At(step, killer.start)])


@pytest.mark.ci_only
@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path):
    def start(run, *arguments):
        target = "tests.trainer.test_loops:train_until_killed"
        output = tmp_path / f"output of {run} {len([*tmp_path.iterdir()])}"
        with WarmProcess(target, [str(tmp_path / run), *arguments], {}, output) as process:
            return process.wait()

    seed = random.randrange(1 << 30)
    draw, kills = random.Random(seed), 0
    assert start("straight", "-1", "0") == 0
    for part in range(5):
        first = part * KILLED_STEPS // 5
        step = draw.randrange(first + 1, first + KILLED_STEPS // 5)
        kills += start("killed", str(step), f"{draw.uniform(0, 0.05)}") == -signal.SIGKILL
    assert kills, f"seed {seed}"
    assert start("killed", "-1", "0") == 0
    assert_same_values(tmp_path / "straight", tmp_path / "killed", KILLED_STEPS)


def test_it_works_ahead_but_only_so_far():
    made, third = [], threading.Event()

    def make(step: int) -> int:
        made.append(step)
        if step == 2:
            third.set()
        return step

    with prefetched(make, range(100), ahead=3) as inputs:
        assert third.wait(PATIENCE)
        assert next(inputs) == 0
    assert made in ([0, 1, 2], [0, 1, 2, 3])
    assert not any(thread.name.startswith("prefetch") for thread in threading.enumerate())


def test_an_exception_is_raised_at_its_step_with_its_own_message():
    def make(step: int) -> int:
        if step == 3:
            raise OSError("shard 7 is gone")
        return step

    seen = []
    with pytest.raises(OSError, match="shard 7 is gone"), prefetched(make, range(9)) as made:
        seen.extend(made)
    assert seen == [0, 1, 2]
