"""Kills a training thirty times, at random moments, and compares its end with an undisturbed run.

    python -m tests.trainer.run_dir.crash_marathon [--kills=30] [--seed=N]

Every second kill comes while a checkpoint is written. After each, all that looks like a checkpoint
has to be whole, and the training has to go on from the latest: at most the steps after it, and one
checkpoint that was being written, are lost. At the end the losses of all steps have to be those of
the undisturbed run, bit for bit.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

import numpy as np

from t2tp import registry
from tests.trainer import tiny_problem  # noqa: F401 (registers problems)
from tests.trainer.run_dir.crashing_trainer import (
    PROBLEM,
    Run,
    begun_at,
    kill_while_saving,
    kill_while_training,
)

SAVE_STEPS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    args = parser.parse_args()
    random.seed(args.seed)
    print(f"seed {args.seed}")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        marathon(Path(directory), args.kills)
    print(
        f"{args.kills} kills in {time.monotonic() - begun:.0f} s: every loss is the undisturbed's"
    )


def marathon(directory: Path, kills: int) -> None:
    """All of it, in an empty directory."""
    registry.problem(PROBLEM)().prepare(directory / "data")
    steps = 8 * kills + 40
    undisturbed = Run(directory / "undisturbed", directory / "data", steps, SAVE_STEPS)
    undisturbed.finish(directory / "said-undisturbed")
    run = Run(directory / "killed", directory / "data", steps, SAVE_STEPS)
    latest = interrupted = 0
    for number in range(kills):
        kill = (kill_while_training, kill_while_saving)[number % 2]
        step = latest + random.randrange(1, 3 * SAVE_STEPS)
        said_in = directory / f"said-{number}"
        kill(run, said_in, step)
        assert begun_at((said_in / "err").read_text()) == latest
        saved = (run.saved_steps() or [0])[-1]
        # What was being written at the kill is lost, and perhaps not seen to be done.
        assert saved >= max(latest, step - step % SAVE_STEPS - SAVE_STEPS), (saved, latest, step)
        interrupted += run.is_interrupted()
        latest = saved
        print(f"{number + 1}: {kill.__name__}, after step {step}; latest checkpoint {latest}")
    assert begun_at(run.finish(directory / "said-end")) == latest
    np.testing.assert_array_equal(run.losses(), undisturbed.losses())
    print(f"{interrupted} kills have left an unfinished checkpoint")


if __name__ == "__main__":
    main()
