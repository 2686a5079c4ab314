"""Kills the program while it trains and saves, starts it again, compares with an undisturbed run.

`python -m tests.trainer.crash_marathon` does it thirty times.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.crashing_trainer import (
    WAIT,
    Run,
    begun_at,
    kill_while_saving,
    kill_while_training,
)

pytestmark = pytest.mark.slow

STEPS, SAVE_STEPS = 120, 10


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> np.ndarray:
    """The losses of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = Run(folder / "run", data_dir, STEPS, SAVE_STEPS)
    run.finish(folder / "said")
    return run.losses()


@pytest.mark.parametrize("kill", [kill_while_training, kill_while_saving])
def test_killed_it_goes_on_bit_for_bit(tmp_path, data_dir, undisturbed, kill):
    step = random.randrange(11, STEPS - 20)
    run = Run(tmp_path / "killed", data_dir, STEPS, SAVE_STEPS)
    kill(run, tmp_path / "first", step)
    saved = run.saved_steps()
    # What was being written may be lost, and nothing before it.
    assert saved[-1] >= step - step % SAVE_STEPS - SAVE_STEPS
    moved = Run(tmp_path / "moved", data_dir, STEPS, SAVE_STEPS, mesh_shape="model:4")
    shutil.copytree(run.folder, moved.folder)

    assert begun_at(run.finish(tmp_path / "second")) == saved[-1]
    np.testing.assert_array_equal(run.losses(), undisturbed, f"killed at {step}")
    assert run.saved_steps() == [STEPS - 20, STEPS - 10, STEPS]
    assert not run.is_interrupted()

    assert begun_at(moved.finish(tmp_path / "third")) == saved[-1]
    np.testing.assert_allclose(moved.losses(), undisturbed, rtol=1e-5)


def test_interrupted_it_saves_leaves_and_goes_on(tmp_path, data_dir, undisturbed):
    run = Run(tmp_path / "run", data_dir, STEPS, SAVE_STEPS)
    with run.start(tmp_path / "first") as process:
        process.wait_for_line(f"step {random.randrange(5, STEPS - 20)}/", WAIT)
        process.signal(signal.SIGINT)
        assert process.wait(WAIT) == 130
        said = process.err.read_text()
    assert "Traceback" not in said
    step = int(re.search(r"t2tp_trainer: interrupted after step (\d+), which is saved", said)[1])
    assert begun_at(run.finish(tmp_path / "second")) == step
    np.testing.assert_array_equal(run.losses(), undisturbed)


def test_a_second_trainer_leaves_the_first_alone(tmp_path, data_dir, undisturbed):
    run = Run(tmp_path / "run", data_dir, STEPS, SAVE_STEPS)
    with run.start(tmp_path / "first") as first:
        first.wait_for_line("step 5/", WAIT)
        with run.start(tmp_path / "second") as second:
            assert second.wait(WAIT) == 2
            said = second.err.read_text().splitlines()[-1]
        assert re.fullmatch(
            rf"t2tp_trainer: {run.folder} is being trained in by process \d+ on .*, since"
            " .*: wait for its end, end it, or choose another output_dir",
            said,
        )
        assert first.wait(WAIT) == 0
    np.testing.assert_array_equal(run.losses(), undisturbed)
