"""Kills runs while they train and save; resumed, they have the losses of an undisturbed run."""

import random
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.run_dir.crashing_trainer import (
    Run,
    begun_at,
    kill_while_saving,
    kill_while_training,
)

pytestmark = pytest.mark.slow

STEPS, SAVE_STEPS = 90, 10


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> np.ndarray:
    """The losses of a run that nobody disturbed."""
    directory = tmp_path_factory.mktemp("undisturbed")
    run = Run(directory / "run", data_dir, STEPS, SAVE_STEPS)
    run.finish(directory / "said")
    return run.losses()


def kill_at_random(kill: Callable[[Run, Path, int], None], run: Run, said_in: Path) -> int:
    """Kills it at some moment of the next third; returns the step that was saved last."""
    first = max(run.saved_steps(), default=0)
    step = first + random.randrange(11, STEPS // 3)
    kill(run, said_in, step)
    saved = max(run.saved_steps(), default=0)
    # What was being written may be lost, and nothing before it.
    assert saved >= step - step % SAVE_STEPS - SAVE_STEPS
    return saved


@pytest.mark.ci_only
def test_killed_it_resumes_bit_for_bit(tmp_path, data_dir, undisturbed):
    run = Run(tmp_path / "killed", data_dir, STEPS, SAVE_STEPS)
    kill_at_random(kill_while_saving, run, tmp_path / "first")
    saved = kill_at_random(kill_while_training, run, tmp_path / "second")
    moved = Run(tmp_path / "moved", data_dir, STEPS, SAVE_STEPS, mesh_shape="model:4")
    shutil.copytree(run.directory, moved.directory)

    assert begun_at(run.finish(tmp_path / "third")) == saved
    np.testing.assert_array_equal(run.losses(), undisturbed)
    assert run.saved_steps() == [STEPS - 20, STEPS - 10, STEPS]
    assert not run.is_interrupted()

    assert begun_at(moved.finish(tmp_path / "fourth")) == saved
    np.testing.assert_allclose(moved.losses(), undisturbed, rtol=1e-5)


def test_a_second_trainer_is_sent_away_and_an_interrupted_one_resumes(
    tmp_path, data_dir, undisturbed
):
    run = Run(tmp_path / "run", data_dir, STEPS, SAVE_STEPS)
    with run.start(tmp_path / "first") as first:
        first.wait_for_line("step 5/")
        first.signal(signal.SIGSTOP)  # It lives, and holds its lock.
        with run.start(tmp_path / "second") as second:
            assert second.wait() == 2
            said = second.err.read_text().splitlines()[-1]
        assert re.fullmatch(
            rf"t2tp_trainer: {run.directory} is being trained in by process \d+ on .*, since"
            " .*: wait for its end, end it, or choose another output_dir",
            said,
        )
        first.signal(signal.SIGCONT)
        first.wait_for_line(f"step {random.randrange(8, STEPS - 30)}/")
        first.signal(signal.SIGINT)
        assert first.wait() == 130
        said = first.err.read_text()
    assert "Traceback" not in said
    step = int(re.search(r"t2tp_trainer: interrupted after step (\d+), which is saved", said)[1])
    assert begun_at(run.finish(tmp_path / "third")) == step
    np.testing.assert_array_equal(run.losses(), undisturbed)
