"""A program is saved and restored without the trainer."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

import t2tp
from t2tp import mtf
from t2tp.checkpoint import UnusableCheckpointError, all_steps, latest
from t2tp.checkpoint.variables import CheckpointMismatchError

BATCH, D_IN, D_OUT = (mtf.Dimension(*d) for d in (("batch", 8), ("d_in", 4), ("d_out", 4)))
X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


def make_program(mesh_shape: str = "", *, momentum: bool = True, seed: int = 0) -> t2tp.Program:
    """Returns a program that learns to output its input."""

    def step_fn(mesh, features):
        w = mtf.get_variable(mesh, "w", mtf.Shape([D_IN, D_OUT]))
        y = mtf.einsum([features["x"], w], [BATCH, D_OUT])
        target = mtf.rename_dimension(features["x"], "d_in", "d_out")
        loss = mtf.reduce_mean(mtf.square(y - target))
        (update,) = mtf.gradients([loss], [w])
        if momentum:
            zeros = tf1.zeros_initializer()
            m = mtf.get_variable(mesh, "m", w.shape, initializer=zeros, trainable=False)
            update = 0.9 * m + update
            mtf.assign(m, update)
        mtf.assign_sub(w, 0.1 * update)
        return {"loss": loss}

    feature = t2tp.Feature(mtf.Shape([BATCH, D_IN]))
    layout = "batch:data;d_in:model;d_out:other"
    return t2tp.Program(step_fn, {"x": feature}, mesh_shape=mesh_shape, layout=layout, seed=seed)


def train(program: t2tp.Program, steps: int) -> list[float]:
    return [float(program({"x": X}, step=step)["loss"]) for step in range(steps)]


@pytest.fixture(scope="module")
def program() -> t2tp.Program:
    """Returns a program for tests that look only at files."""
    return make_program("data:2")


MESHES = [("data:2;model:2", "other:4"), ("", "data:2;model:4"), ("model:2", "")]


@pytest.mark.parametrize(("before", "after"), MESHES)
def test_training_resumes_on_any_mesh(tmp_path: Path, before: str, after: str) -> None:
    first = make_program(before)
    train(first, 2)
    path = t2tp.save_checkpoint(tmp_path, first, 2)
    expected = train(first, 3)
    second = make_program(after, seed=1)
    assert t2tp.restore_checkpoint(tmp_path, second) == 2
    np.testing.assert_allclose(train(second, 3), expected, rtol=1e-5)
    assert path == tmp_path / "step-00000002"


def test_the_metadata_say_what_was_saved_and_what_the_caller_adds(tmp_path, program):
    t2tp.save_checkpoint(tmp_path, program, 1, metadata={"examples_seen": 8})
    assert latest(tmp_path).metadata == {
        "mesh_shape": "data:2",
        "layout": "batch:data;d_in:model;d_out:other",
        "dimensions": {"w": ["d_in", "d_out"], "m": ["d_in", "d_out"]},
        "trainable": ["w"],
        "examples_seen": 8,
    }
    with pytest.raises(ValueError, match="metadata: the key 'layout' is reserved"):
        t2tp.save_checkpoint(tmp_path, program, 2, metadata={"layout": "mine"})


def test_where_there_is_no_checkpoint_values_stay_only_if_that_is_meant(tmp_path, program):
    before = program.variables["w"].numpy()
    with pytest.raises(FileNotFoundError, match="run holds no finished checkpoint; with missing"):
        t2tp.restore_checkpoint(tmp_path / "run", program)
    assert t2tp.restore_checkpoint(tmp_path / "run", program, missing_ok=True) == 0
    np.testing.assert_array_equal(program.variables["w"].numpy(), before)


def test_the_latest_stay_and_a_step_that_is_named_is_restored(tmp_path, program):
    for step in (1, 2, 3):
        program.variables["w"].assign(np.full((4, 4), step))
        t2tp.save_checkpoint(tmp_path, program, step, max_to_keep=2)
    assert all_steps(tmp_path) == [2, 3]
    assert t2tp.restore_checkpoint(tmp_path, program, 2) == 2
    assert (program.variables["w"].numpy() == 2).all()
    with pytest.raises(UnusableCheckpointError, match="step-00000001 is not a checkpoint"):
        t2tp.restore_checkpoint(tmp_path, program, 1, missing_ok=True)


def test_what_only_one_of_program_and_checkpoint_has_is_named(tmp_path, program):
    plain = make_program("data:2", momentum=False)
    t2tp.save_checkpoint(tmp_path / "with", program, 1)
    t2tp.save_checkpoint(tmp_path / "without", plain, 1)
    with pytest.raises(CheckpointMismatchError, match="only in the checkpoint; only optimizer"):
        t2tp.restore_checkpoint(tmp_path / "with", plain)
    assert t2tp.restore_checkpoint(tmp_path / "with", plain, allow_extra=True) == 1
    for allow_extra in (False, True):
        with pytest.raises(CheckpointMismatchError, match="m is not in the checkpoint"):
            t2tp.restore_checkpoint(tmp_path / "without", program, allow_extra=allow_extra)
