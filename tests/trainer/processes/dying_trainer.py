"""`t2tp_trainer` on a host that dies in the first round, at a step: `DIE_AT=host:step`.

It dies when the checkpoint in memory of step `WITH` is complete: each part is there twice.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping

import numpy as np

from t2tp.processes.process_spec import find_process_spec
from t2tp.trainer.cli.programs import t2tp_trainer as main
from t2tp.trainer.hooks.hook import Training
from t2tp.trainer.hooks.step_note import StepNote, launch_directory
from t2tp.trainer.run_dir.lock_file import ROUND_VARIABLE
from tests.trainer import tiny_problem  # noqa: F401 (registers problems)


class DyingNote(StepNote):
    """Ends the launcher and this process without a word."""

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        super().after_step(training, outputs)
        process, step = map(int, os.environ["DIE_AT"].split(":"))
        spec = find_process_spec()
        mine = spec is not None and spec.process_id == process
        if mine and os.environ[ROUND_VARIABLE] == "1" and training.steps_done == step:
            while not _is_copied(int(os.environ["WITH"]), spec.num_processes):
                time.sleep(0.02)
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def _is_copied(step: int, num_processes: int) -> bool:
    """Whether the part of each process is there twice; all launchers' memory is in a directory."""
    hosts = launch_directory().parent
    return len(list(hosts.glob(f"*/parts/*-{step:08d}-*.part"))) == 2 * num_processes


if __name__ == "__main__":
    from t2tp.trainer.hooks import default_hooks

    default_hooks.StepNote = DyingNote
    sys.exit(main())
