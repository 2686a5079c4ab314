"""Several processes restore the same checkpoint, or none does."""

import shutil
from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import checkpoint
from t2tp.checkpoint import (
    Checkpoint,
    DamagedCheckpointError,
    DifferentCheckpointsError,
    UnusableCheckpointError,
)
from t2tp.checkpoint.restore import Restored, restore_latest
from t2tp.mesh.layout import Layout
from t2tp.processes.cluster import Cluster
from t2tp.program.variables import Variables, VariableSpec
from tests.checkpoint.small_variables import SHAPE, save, small_variables
from tests.two_in_threads import run_two


def restore(directories: list[Path]) -> list[object]:
    """Restores in two processes, each with half of the variable, from their directories."""
    layout = Layout("model:2", "d_in:model")

    def task(cluster: Cluster) -> Restored | None:
        half = Variables(layout, cluster)
        half.create(VariableSpec("w", SHAPE, tf.float32, tf1.zeros_initializer(), True))
        return restore_latest(directories[cluster.process_id], half, strict=True)

    return run_two(task)


@pytest.mark.parametrize("faulty", [0, 1])
def test_a_read_that_fails_in_one_process_fails_in_both(tmp_path, monkeypatch, faulty):
    save(tmp_path, small_variables(), 1, 2)
    read = Checkpoint.read

    def times_out(self, slices):
        if (slices[0].begin[0] > 0) == faulty:  # true in process `faulty`
            raise UnusableCheckpointError("step 2 cannot be read: Connection timed out.")
        return read(self, slices)

    monkeypatch.setattr(Checkpoint, "read", times_out)
    for error in restore([tmp_path, tmp_path]):
        assert isinstance(error, UnusableCheckpointError)
        assert not isinstance(error, DamagedCheckpointError)
        assert str(error) == f"{'process 1: ' * faulty}step 2 cannot be read: Connection timed out."


def test_processes_that_share_a_directory_or_have_copies_restore_its_latest(tmp_path):
    save(tmp_path / "run", small_variables(), 1, 2)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for other in ("run", "copy"):
        restored = restore([tmp_path / "run", tmp_path / other])
        assert [(each.step, each.damaged) for each in restored] == [(2, ())] * 2


@pytest.mark.parametrize("there", [(1, 2), (1,), (), (1, 2, 3)])
def test_weights_of_two_runs_are_not_mixed(tmp_path, there):
    save(tmp_path / "run", small_variables(), 1, 2)
    save(tmp_path / "other", small_variables(), *there)
    other = checkpoint.step_directory(tmp_path / "other", 2)
    for error in restore([tmp_path / "run", tmp_path / "other"]):
        assert isinstance(error, DifferentCheckpointsError)
        assert f"process 1: {other} is not the checkpoint that" in str(error)
    assert checkpoint.all_steps(tmp_path / "run") == [1, 2]
