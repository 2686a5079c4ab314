"""Hooks for TensorBoard on request: `--histogram_steps` and `--profile_steps=100:105`."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from absl import logging

from t2tp.program.variables import SlicedVariable, Variables
from t2tp.trainer.hooks.hook import Hook, PeriodicHook, Training, wait_for
from t2tp.trainer.hooks.summaries import SummaryWriter


@dataclass(eq=False)
class HistogramHook(PeriodicHook):
    """Writes histograms of the trainable variables every N steps.

    No values are gathered: each slice is written by the process that has its first copy. Process 0
    writes into the run's directory, and each other process into its own subdirectory, which
    TensorBoard shows as a separate run.

    Attributes:
      summaries: this process's event file.
    """

    variables: Variables
    summaries: SummaryWriter

    def act(self, training: Training) -> None:
        """Writes histograms."""
        with training.clock.stopped("histograms"):
            for variable in self.variables:
                values = self._values(variable) if variable.spec.trainable else None
                if values is not None:
                    self.summaries.histogram(training.steps_done, variable.spec.name, values)
            self.summaries.flush()

    def end(self, training: Training) -> None:
        """Closes the event file."""
        self.summaries.close()

    def _values(self, variable: SlicedVariable) -> tf.Tensor | None:
        """Copies this process's share of the values to the host; None if there are none."""
        local = self.variables.cluster.local_pnums
        with tf.device("CPU:0"):
            slices = [
                tf.reshape(tf.cast(variable.value_of(pnum), tf.float32), [-1])
                for pnum in variable.owners().values()
                if pnum in local
            ]
            return tf.concat(slices, 0) if slices else None


class ProfileHook(Hook):
    """Profiles a range of steps; writes no profile if training resumes after the range's start."""

    def __init__(self, steps: tuple[int, int], directory: str) -> None:
        """Sets the first and the last step, counted from 1, and the run's directory.

        TensorFlow writes into the subdirectory `plugins/profile/`, where TensorBoard looks.
        """
        self._first, self._last = steps
        self._directory = directory
        self._is_on = False
        self._mark = contextlib.ExitStack()

    def ends_loop(self, step: int) -> bool:
        """Whether the range of steps begins or ends after this step."""
        return step in (self._first - 1, self._last)

    def before_step(self, training: Training) -> None:
        """Starts the profiler at the first step of the range, and marks each step."""
        if training.steps_done + 1 == self._first:
            tf.profiler.experimental.start(self._directory)
            self._is_on = True
        if self._is_on:
            # The profiler treats a numbered root event (`_r`) as a step. The event lasts until the
            # next step, because the devices still compute when the step's call returns.
            mark = tf.profiler.experimental.Trace("train", step_num=training.steps_done + 1, _r=1)
            self._mark.close()
            self._mark.enter_context(mark)

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Stops the profiler after the last step of the range."""
        if self._is_on and training.steps_done >= self._last:
            wait_for(training, outputs)
            self._stop(training)

    def end(self, training: Training) -> None:
        """Writes the unfinished profile if the training ends before the last step of the range."""
        if self._is_on:
            self._stop(training)

    def _stop(self, training: Training) -> None:
        self._mark.close()
        with training.clock.stopped("profile"):
            tf.profiler.experimental.stop()
        self._is_on = False
        steps = f"{self._first} to {training.steps_done}"
        logging.info(f"profile of the steps {steps}: {self._directory}/plugins/profile")
