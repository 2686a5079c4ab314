"""Training goes on from a checkpoint in memory, if it is intact and later than that on the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from t2tp.trainer.errors import UsageError
from t2tp.trainer.memory_parts import choose_parts, parts_directory, parts_in, write_choice
from t2tp.trainer.model_fn import ModeKeys
from tests.trainer import toy
from tests.trainer.toy_estimator import estimator

EVERY = 2


@pytest.fixture
def memory(tmp_path, monkeypatch) -> Path:
    """The launcher's directory."""
    directory = tmp_path / "memory"
    directory.mkdir()
    monkeypatch.setenv("T2TP_LAUNCH_DIR", str(directory))
    return directory


def trained(run: Path, steps: int):
    """An estimator that has trained to a step, which is on the disk, and before it in memory."""
    made = estimator(run, save_checkpoints_steps=100, memory_checkpoint_every=EVERY)
    made.train(toy.inputs(), steps)
    return made


def begin_again(run: Path, memory: Path):
    """An estimator that begins as after a restart, without the checkpoint of the end."""
    parts = {0: [part.name for part in parts_in(memory)]}
    write_choice(memory, [name for name, _ in choose_parts(parts)])
    made = estimator(run, save_checkpoints_steps=100, memory_checkpoint_every=EVERY)
    made.build(ModeKeys.TRAIN, toy.inputs().features)
    return made


def drop_last(run: Path) -> None:
    for path in (run / "checkpoints").iterdir():
        path.rename(run / f"moved-{path.name}")


def test_steps_are_saved_and_the_latest_kept(tmp_path, memory):
    trained(tmp_path / "run", 9)
    assert sorted(part.step for part in parts_in(memory)) == [4, 6, 8]


def test_training_goes_on_from_memory_with_the_same_numbers(tmp_path, memory):
    run = tmp_path / "run"
    wanted = trained(run, 9)
    drop_last(run)
    again = begin_again(run, memory)
    assert again.steps_done == 8
    again.train(toy.inputs(), 9)
    for one, other in zip(wanted._variables, again._variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_what_is_on_the_disk_and_later_is_taken(tmp_path, memory):
    trained(tmp_path / "run", 9)
    assert begin_again(tmp_path / "run", memory).steps_done == 9


def test_a_damaged_part_is_not_restored(tmp_path, memory):
    run = tmp_path / "run"
    trained(run, 5)
    trained(run, 9)
    (run / "checkpoints" / "step-00000009").rename(run / "moved")
    for part in parts_in(memory):
        path = parts_directory(memory) / part.name
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    assert begin_again(run, memory).steps_done == 5


def test_another_seed_is_another_run(tmp_path, memory):
    run = tmp_path / "run"
    trained(run, 9)
    drop_last(run)
    write_choice(memory, [max(parts_in(memory)).name])
    other = estimator(run, memory_checkpoint_every=EVERY, random_seed=77)
    other.build(ModeKeys.TRAIN, toy.inputs().features)
    assert other.steps_done == 0


def test_it_needs_a_launcher(tmp_path, monkeypatch):
    monkeypatch.delenv("T2TP_LAUNCH_DIR", raising=False)
    with pytest.raises(UsageError, match="t2tp_launch --max_restarts"):
        estimator(tmp_path, memory_checkpoint_every=EVERY)
