"""`--histogram_steps`: how the values of each variable are distributed."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from t2tp.mesh.variables import SlicedVariable, Variables
from t2tp.trainer.hooks import Hook, Training, wait_for
from t2tp.trainer.summaries import SummaryWriter


class HistogramHook(Hook):
    """Writes histograms of the trainable variables every so many steps.

    Nothing is gathered: each process counts the slices that it is the first to hold. Process 0
    writes into the run's folder, the others below it, where TensorBoard shows them as runs of
    their own.
    """

    def __init__(self, every: int, variables: Variables, summaries: SummaryWriter) -> None:
        """Says how often, of what, and where to.

        Args:
          every: steps from one histogram to the next.
          variables: of the run.
          summaries: of this process.
        """
        self._every = every
        self._variables = variables
        self._summaries = summaries

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Writes histograms if it is time."""
        if training.steps_done % self._every:
            return
        wait_for(training, outputs)
        with training.clock.stopped("histograms"):
            for variable in self._variables:
                values = self._values(variable) if variable.spec.trainable else None
                if values is not None:
                    self._summaries.histogram(training.steps_done, variable.spec.name, values)
            self._summaries.flush()

    def end(self, training: Training) -> None:
        """Closes the event file."""
        self._summaries.close()

    def _values(self, variable: SlicedVariable) -> tf.Tensor | None:
        """All that this process is to count, in memory of the host; None if that is nothing."""
        local = self._variables.cluster.local_pnums
        with tf.device("CPU:0"):
            slices = [
                tf.reshape(tf.cast(variable.slice_of(pnum), tf.float32), [-1])
                for pnum in variable.owners().values()
                if pnum in local
            ]
            return tf.concat(slices, 0) if slices else None


def process_folder(output_dir: str, process_id: int) -> str:
    """Where a process writes for TensorBoard."""
    return os.path.join(output_dir, f"process_{process_id}") if process_id else output_dir
