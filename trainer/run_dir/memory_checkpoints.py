"""Checkpoints in the memory of the hosts: saved often, and lost with the hosts that have them.

`t2tp_launch` keeps them, copies each to another host, and says which to restore
(`t2tp.trainer.processes.copies`). The disk stays the truth: a checkpoint in memory is restored
only if all processes have their parts of it, intact, and it is later than the latest on the disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import logging

from t2tp.checkpoint import BackgroundWorker, copy_to_host, memory
from t2tp.checkpoint.errors import DamagedCheckpointError
from t2tp.mesh.layout import Layout
from t2tp.processes.process_spec import ROUND_VARIABLE
from t2tp.program.variables import Variables
from t2tp.trainer.hooks.hook import Hook, Training, wait_for
from t2tp.trainer.memory_parts import Part, parts_directory, prune, read_choice


class MemoryCheckpoints(Hook):
    """Saves this process's slices every so many steps, and restores them."""

    def __init__(self, every: int, directory: Path, layout: Layout, seed: int) -> None:
        """Sets the interval.

        Args:
          every: steps from one to the next.
          directory: of the launcher, in memory.
          layout: of the run.
          seed: of the run.
        """
        self._every = every
        self._directory = directory
        self._background = BackgroundWorker("save-in-memory")
        self._metadata = {
            "mesh_shape": layout.mesh_text,
            "layout": layout.rules_text,
            "random_seed": seed,
        }
        self._variables: Variables | None = None

    def saves(self, variables: Variables) -> MemoryCheckpoints:
        """Sets what to save, and returns this hook."""
        self._variables = variables
        return self

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Saves if it is due; training waits only for the copy from devices to host."""
        step = training.steps_done
        if step % self._every or step >= training.max_steps:
            return
        assert self._variables is not None
        wait_for(training, outputs)
        training.confirm_saving()
        self._wait()
        with training.clock.stopped("memory checkpoint"):
            values = copy_to_host(memory.as_slices(self._variables))
        local = self._variables.cluster.local_pnums
        size = len(self._variables.cluster.devices)
        number = int(os.environ.get(ROUND_VARIABLE, "1"))
        part = Part(number, step, local.start, local.stop, size)
        self._background.start(lambda: self._write(part, values))

    def end(self, training: Training) -> None:
        """Waits for the last save."""
        self._wait()

    def restore(self, variables: Variables, saved_step: int) -> int | None:
        """Restores the variables in all processes, or in none; all processes call this.

        Args:
          variables: to restore.
          saved_step: of the latest checkpoint on the disk, as process 0 sees it; -1 if none.

        Returns:
          The step of the values; None if there is no later checkpoint in memory that all have.
        """
        step, values, reason = self._read(variables)
        answers = [
            json.loads(answer)
            for answer in variables.cluster.process_allgather(
                "memory checkpoint", json.dumps([step, reason, saved_step])
            )
        ]
        steps = {each for each, _, _ in answers}
        on_disk = answers[0][2]
        if len(steps) > 1 or step is None or step <= on_disk:
            if variables.cluster.is_main_process:
                for number, (_, why, _) in enumerate(answers):
                    if why:
                        logging.info(
                            "process %d cannot restore from memory: %s; all restore from disk",
                            number,
                            why,
                        )
            return None
        for variable in variables:
            pnums = variables.cluster.local_pnums
            for pnum, part in zip(pnums, variable.slices, strict=True):
                with tf.device(part.device):
                    part.assign(values[variable.spec.name, tuple(variable.begin(pnum))])
        logging.info("restored step %d from the memory of the hosts", step)
        return step

    def _read(self, variables: Variables) -> tuple[int | None, dict[memory.Key, tf.Tensor], str]:
        """Reads this process's slices; returns step, values and why there are none."""
        local = variables.cluster.local_pnums
        chosen = [part for part in map(Part.parse, read_choice(self._directory)) if part]
        mine = [part for part in chosen if part.first < local.stop and part.end > local.start]
        if not mine:
            return None, {}, ""
        values: dict[memory.Key, tf.Tensor] = {}
        for part in mine:
            try:
                metadata, found = memory.read(parts_directory(self._directory) / part.name)
            except DamagedCheckpointError as error:
                return None, {}, str(error)
            if metadata != self._metadata:
                return None, {}, f"{part.name} is of another mesh, layout or seed"
            values |= found
        for key, now in memory.local_slices(variables).items():
            saved = values.get(key)
            if saved is None or (saved.shape, saved.dtype) != (now.shape, now.dtype):
                return None, {}, f"{mine[0].name} has no such slice as {key[0]} has at {key[1]}"
        return mine[0].step, values, ""

    def _write(self, part: Part, values: list) -> None:
        memory.write(parts_directory(self._directory) / part.name, values, self._metadata)
        prune(self._directory)

    def _wait(self) -> None:
        """Waits for the save before; one that failed only costs what it would have saved."""
        try:
            self._background.wait()
        except OSError as error:
            logging.warning("no checkpoint in memory: %s", error)
