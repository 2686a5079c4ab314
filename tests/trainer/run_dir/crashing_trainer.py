"""A trainer that is killed again and again: started again from a process that has imported all.

It trains the tiny problem on a mesh of 2x2 virtual CPU devices, always with the same command.
"""

import os
import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from t2tp.checkpoint import Checkpoint, all_steps
from tests.patience import PATIENCE
from tests.trainer.hooks.events import read_scalars
from tests.trainer.small_run import flags
from tests.warm_processes import WarmProcess


@dataclass(frozen=True)
class Run:
    """What is trained, and where.

    Attributes:
      directory: of the run.
      data_dir: where the problem's data were made.
      steps: of the whole run.
      save_steps: from one checkpoint to the next.
      mesh_shape: of four processors.
    """

    directory: Path
    data_dir: Path
    steps: int
    save_steps: int
    mesh_shape: str = "data:2;model:2"

    def command(self) -> list[str]:
        """The flags."""
        return flags(
            self.directory,
            self.data_dir,
            mesh_shape=self.mesh_shape,
            train_steps=self.steps,
            save_checkpoints_steps=self.save_steps,
            keep_checkpoint_max=3,
        )

    def start(self, said_in: Path) -> WarmProcess:
        """Starts it; what it says is in `said_in`, a directory that is not there yet."""
        return WarmProcess("t2tp.trainer.cli.programs:t2tp_trainer", self.command(), {}, said_in)

    def finish(self, said_in: Path) -> str:
        """Lets it train to the end, which has to succeed; returns what it said."""
        with self.start(said_in) as process:
            assert process.wait() == 0, process.err.read_text()
            return process.err.read_text()

    def losses(self) -> np.ndarray:
        """The loss of each step."""
        by_step = read_scalars(self.directory, was_killed=True)["loss"]
        assert sorted(by_step) == list(range(1, self.steps + 1))
        return np.array([by_step[step] for step in sorted(by_step)], np.float32)

    def saved_steps(self) -> list[int]:
        """The steps of all that looks like a checkpoint, each of which has to be whole."""
        steps = all_steps(self.directory / "checkpoints")
        named = list((self.directory / "checkpoints").glob("step-????????"))
        assert len(named) == len(steps)
        for directory in named:
            Checkpoint(directory).verify()
        return steps

    def is_interrupted(self) -> bool:
        """Whether something died in the middle of saving or deleting a checkpoint."""
        names = [path.name for path in (self.directory / "checkpoints").glob("*")]
        return any(name.endswith((".tmp", ".discarded")) for name in names)


def kill_while_training(run: Run, said_in: Path, step: int) -> None:
    """Kills it at some moment soon after it has reported a step."""
    with run.start(said_in) as process:
        process.wait_for_line(f"step {step}/")
        time.sleep(random.uniform(0, 0.05))
        process.signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def kill_while_saving(run: Run, said_in: Path, step: int) -> None:
    """Kills it at some moment after it has begun to write the next checkpoint after a step."""
    checkpoints = run.directory / "checkpoints"
    with run.start(said_in) as process:
        process.wait_for_line(f"step {step}/")
        deadline = time.monotonic() + PATIENCE
        while not list(checkpoints.glob("*.tmp")):
            assert time.monotonic() < deadline, process.err.read_text()
            os.sched_yield()
        time.sleep(random.uniform(0, 0.02))
        process.signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def begun_at(said: str) -> int:
    """The step from which a training has gone on; 0: from the beginning."""
    found = re.search(r"resuming from the checkpoint of step (\d+)", said)
    return int(found[1]) if found else 0
