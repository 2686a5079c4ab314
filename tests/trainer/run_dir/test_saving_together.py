"""Two processes, each with half of the model, save and restore together."""

from pathlib import Path

import pytest

from t2tp.checkpoint import Checkpoint, all_steps, last_finished, step_directory
from t2tp.trainer.processes.local_processes import environments_of
from tests.files import flip
from tests.trainer.small_run import flags
from tests.warm_processes import ended, started

pytestmark = pytest.mark.slow

# Process 0 has the first half of each dimension that `model` splits, process 1 the second.
MESH = "model:2;data:2"


def train_together(run: Path, data_dir: Path, steps: int) -> list[str]:
    """Trains in two processes, which save by the clock; returns what each has printed."""
    saving = {"save_checkpoints_secs": 0.2, "keep_checkpoint_max": 50}
    arguments = flags(run, data_dir, mesh_shape=MESH, train_steps=steps, **saving)
    target, said_in = "t2tp.trainer.cli.programs:t2tp_trainer", run.with_name(f"said-{steps}")
    processes = started(target, [arguments] * 2, environments_of(2, None, {}, []), said_in)
    return ended(processes, [0, 0])


@pytest.mark.ci_only
def test_they_save_by_one_clock_and_pass_over_what_one_of_them_cannot_read(tmp_path, data_dir):
    run = tmp_path / "run"
    train_together(run, data_dir, 30)
    saved = all_steps(run / "checkpoints")
    for step in saved:
        Checkpoint(step_directory(run / "checkpoints", step)).verify()
    assert len(saved) >= 2
    assert saved[-1] == 30
    latest = last_finished(run / "checkpoints").path
    flip(latest / "variables.data-00001-of-00002")  # The second half.

    said, _ = train_together(run, data_dir, 35)
    assert f"resuming from the checkpoint of step {saved[-2]}\n" in said
    assert f"The checkpoint {latest}" in said
    assert "Going back to the checkpoint before it." in said
    assert f"{latest} is kept as {latest}.damaged" in said
    assert all_steps(run / "checkpoints")[-1] == 35
