import multiprocessing
import shutil
from pathlib import Path

import pytest

from t2tp.checkpoint import Checkpoint, all_steps, latest
from tests import warm_processes
from tests.checkpoint import crashing_saver, samples


@pytest.fixture(scope="module")
def ask():
    """Returns a function that asks the process of `crashing_saver` and returns its answer."""
    ours, theirs = multiprocessing.Pipe()
    process = warm_processes.start(crashing_saver.serve, theirs)

    def ask(*words: object) -> str:
        ours.send([str(word) if isinstance(word, Path) else word for word in words])
        return ours.recv()

    yield ask
    process.kill()


def last_step_of_all_whole(directory):
    """Checks all checkpoints that look finished; returns the last one's step, 0 without any."""
    steps = all_steps(directory)
    for step in steps:
        checkpoint = Checkpoint(directory / f"step-{step:08d}")
        checkpoint.verify()
        samples.assert_is_step(checkpoint, step)
    found = latest(directory)
    assert (found.step if found else None) == (steps[-1] if steps else None)
    return found.step if found else 0


def names(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.slow
def test_killed_before_any_file_operation_nothing_saved_is_lost(tmp_path, ask):
    before = tmp_path / "before"
    assert [ask(1000, before) for _ in range(2)] == ["done", "done"]
    number = interrupted = 0
    while True:
        # Start from a copy each time: the leftovers of a kill would add operations to the next
        # save.
        run = tmp_path / str(number)
        shutil.copytree(before, run)
        answer = ask(number, run)
        assert last_step_of_all_whole(run) in (2, 3)
        if answer != "killed":
            break
        number += 1
        if not any(name.endswith((".tmp", ".discarded")) for name in names(run)):
            continue
        interrupted += 1
        assert ask(1000, run) == "done"
        step = last_step_of_all_whole(run)
        assert step in (3, 4)
        assert names(run) == [f"step-{step - 1:08d}", f"step-{step:08d}"]
    assert answer == "done"
    assert interrupted > 10
