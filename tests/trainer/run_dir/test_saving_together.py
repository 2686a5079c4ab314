"""Two processes, each with half of the model, save and restore together."""

from pathlib import Path

import pytest

from t2tp.checkpoint import Checkpoint, all_steps, last_finished
from t2tp.trainer.processes.local_processes import environments_of
from tests.files import flip
from tests.trainer.run_dir.crashing_trainer import Run, begun_at
from tests.warm_processes import started

pytestmark = pytest.mark.slow

# Process 0 has the first half of each dimension that `model` splits, process 1 the second.
MESH = "model:2;data:2"


def train_together(run: Run, said_in: Path, *more: str) -> list[str]:
    """Lets both train to the end, by the clock; returns what each said."""
    arguments = [each for each in run.command() if "save_checkpoints_steps" not in each]
    arguments += ["--save_checkpoints_secs=0.2", "--keep_checkpoint_max=50", *more]
    environments = environments_of(2, None, {}, [])
    target = "t2tp.trainer.cli.programs:t2tp_trainer"
    with started(target, [arguments] * 2, environments, said_in) as processes:
        codes = [process.wait() for process in processes]
        said = [process.err.read_text() for process in processes]
    assert codes == [0, 0], said
    return said


def test_they_save_by_one_clock_and_pass_over_what_one_of_them_cannot_read(tmp_path, data_dir):
    run = Run(tmp_path / "run", data_dir, 30, 0, mesh_shape=MESH)
    train_together(run, tmp_path / "first")
    saved = run.saved_steps()
    assert len(saved) >= 2
    assert saved[-1] == 30
    latest = Checkpoint(last_finished(run.directory / "checkpoints").path)
    flip(latest.path / "variables.data-00001-of-00002")  # The second half.

    said = train_together(run, tmp_path / "second", "--train_steps=35")
    assert begun_at(said[0]) == saved[-2]
    assert f"The checkpoint {latest.path}" in said[0]
    assert "Going back to the checkpoint before it." in said[0]
    assert f"{latest.path} is kept as {latest.path}.damaged" in said[0]
    assert all_steps(run.directory / "checkpoints")[-1] == 35
