"""An estimator of the toy model, its losses, and hooks that watch or stop it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from t2tp import checkpoint
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.hooks.hook import Hook, Training
from t2tp.trainer.run_config import RunConfig
from tests.trainer import toy
from tests.trainer.hooks.events import read_scalars

MESHES = {
    "one device": ("", ""),
    "data": ("data:4", "batch:data"),
    "model": ("model:4", "d_out:model"),
    "both": ("data:2;model:2", "batch:data;d_out:model"),
}


def estimator(directory, mesh="both", hparams=None, model_fn=toy.model_fn, **settings):
    """Returns an estimator that reports each step, and saves every fourth step."""
    mesh_shape, layout = MESHES[mesh]
    settings = {"save_checkpoints_steps": 4, "log_step_count_steps": 1, **settings}
    values = {"learning_rate": 0.05, "mesh_shape": mesh_shape, "layout": layout}
    return Estimator(model_fn, RunConfig(str(directory), **settings), values | (hparams or {}))


def step_directory(run: Path, step: int) -> Path:
    """Returns the directory of a step's checkpoint."""
    return checkpoint.step_directory(run / "checkpoints", step)


def losses(directory: Path) -> list[float]:
    """Returns the loss of each step."""
    by_step = read_scalars(directory)["loss"]
    assert sorted(by_step) == list(range(1, len(by_step) + 1))
    return [by_step[step] for step in sorted(by_step)]


def crash() -> None:
    raise RuntimeError("crash")


class At(Hook):
    """Calls a function at a step."""

    def __init__(self, step: int, what: Callable[[], object]) -> None:
        self.step, self.what = step, what

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        if training.steps_done == self.step:
            self.what()


class Note(Hook):
    """Records when it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def begin(self, training: Training) -> None:
        self.calls.append(("begin", training.steps_done))

    def before_step(self, training: Training) -> None:
        self.calls.append(("before", training.steps_done))

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        assert outputs["loss"] > 0
        self.calls.append(("after", training.steps_done))

    def end(self, training: Training) -> None:
        self.calls.append(("end", training.steps_done))
