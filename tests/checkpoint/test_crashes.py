import multiprocessing
import shutil
from pathlib import Path

import pytest

from t2tp.checkpoint import Checkpoint, all_steps, latest
from tests import warm_processes
from tests.checkpoint import crashing_saver, samples


@pytest.fixture(scope="module")
def ask():
    """Asks the process of `crashing_saver`."""
    ours, theirs = multiprocessing.Pipe()
    process = warm_processes.start(crashing_saver.serve, theirs)

    def ask(*words: object) -> str:
        ours.send([str(word) if isinstance(word, Path) else word for word in words])
        return ours.recv()

    yield ask
    process.kill()


def last_step_of_all_whole(directory):
    """Checks all that looks finished, and returns the latest step (0: there is none)."""
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


def is_interrupted(directory):
    return any(name.endswith((".tmp", ".discarded")) for name in names(directory))


@pytest.mark.slow
def test_killed_before_any_file_operation_nothing_saved_is_lost(tmp_path, ask):
    before = tmp_path / "before"
    assert [ask(1000, before) for _ in range(2)] == ["done", "done"]
    number = interrupted = 0
    while True:
        # Each time from the same start: what a kill leaves makes more operations for the next.
        run = tmp_path / str(number)
        shutil.copytree(before, run)
        answer = ask(number, run)
        assert last_step_of_all_whole(run) in (2, 3)
        if answer != "killed":
            break
        number += 1
        if not is_interrupted(run):
            continue
        interrupted += 1
        assert ask(1000, run) == "done"
        step = last_step_of_all_whole(run)
        assert step in (3, 4)
        assert names(run) == [f"step-{step - 1:08d}", f"step-{step:08d}"]
    assert answer == "done"
    assert interrupted > 10
