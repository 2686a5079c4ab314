"""Several processes restore the same checkpoint, or none does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import checkpoint, mtf
from t2tp.checkpoint import Retention
from t2tp.mesh.cluster import Cluster
from t2tp.mesh.layout import Layout
from t2tp.mesh.variables import Variables, VariableSpec
from t2tp.trainer import restoring
from t2tp.trainer.run_saver import RunSaver
from t2tp.trainer.together import OtherProcessesError
from tests.trainer.test_checkpointing import variables
from tests.trainer.two_in_threads import run_two


def save(folder: Path, steps: tuple[int, ...]) -> None:
    with RunSaver(folder, variables(tf.float32), Retention(9), {}) as saver:
        for step in steps:
            saver.save(step)


def restore(folders: list[Path]) -> list[object]:
    """Lets two processes, each with half of the variable, restore from their folders."""
    layout = Layout("model:2", "d_in:model")
    shape = mtf.Shape([mtf.Dimension("d_in", 8), mtf.Dimension("d_out", 4)])

    def task(cluster: Cluster) -> restoring.Restored | None:
        half = Variables(layout, cluster)
        half.create(VariableSpec("w", shape, tf.float32, tf1.zeros_initializer(), True))
        return restoring.restore_newest(folders[cluster.process_id], half, whole=True)

    return run_two(task)


def test_processes_that_share_a_folder_or_have_copies_restore_its_newest(tmp_path):
    save(tmp_path / "run", (1, 2))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for other in ("run", "copy"):
        restored = restore([tmp_path / "run", tmp_path / other])
        assert restored == [restoring.Restored(2, ())] * 2


@pytest.mark.parametrize("there", [(1, 2), (1,), (), (1, 2, 3)])
def test_weights_of_two_runs_are_not_mixed(tmp_path, there):
    save(tmp_path / "run", (1, 2))
    save(tmp_path / "other", there)
    said = f"process 1: {checkpoint.step_folder(tmp_path / 'other', 2)} is not the checkpoint that"
    for error in restore([tmp_path / "run", tmp_path / "other"]):
        assert isinstance(error, OtherProcessesError)
        assert said in str(error)
    assert checkpoint.all_steps(tmp_path / "run") == [1, 2]
