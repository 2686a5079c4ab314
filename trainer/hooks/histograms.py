"""`--histogram_steps`: histograms of the trainable variables."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from t2tp.program.variables import SlicedVariable, Variables
from t2tp.trainer.hooks.hook import Hook, Training, wait_for
from t2tp.trainer.hooks.summaries import SummaryWriter


class HistogramHook(Hook):
    """Writes histograms of the trainable variables every N steps.

    No values are gathered: each slice is written by the process that has its first copy. Process 0
    writes into the run's directory, and each other process into its own subdirectory, which
    TensorBoard shows as a separate run.
    """

    def __init__(self, every: int, variables: Variables, summaries: SummaryWriter) -> None:
        """Creates the hook; `every` counts steps, and `summaries` is this process's event file."""
        self._every = every
        self._variables = variables
        self._summaries = summaries

    def ends_loop(self, step: int) -> bool:
        """Whether histograms are due after this step."""
        return step % self._every == 0

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Writes histograms if they are due."""
        if not self.ends_loop(training.steps_done):
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
        """Copies this process's share of the values to the host; None if there are none."""
        local = self._variables.cluster.local_pnums
        with tf.device("CPU:0"):
            slices = [
                tf.reshape(tf.cast(variable.value_of(pnum), tf.float32), [-1])
                for pnum in variable.owners().values()
                if pnum in local
            ]
            return tf.concat(slices, 0) if slices else None
