"""`--profile_steps=100:105`: a profile of some steps for TensorBoard."""

import contextlib
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from absl import logging

from t2tp.trainer.hooks.hook import Hook, Training, wait_for


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
