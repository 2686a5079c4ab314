"""Writes TensorBoard summaries."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2tp.trainer.errors import UsageError


class SummaryWriter:
    """Writes to an event file; the first write creates the file.

    Writing raises a `UsageError` if it fails, for example because the disk is full.
    """

    def __init__(self, directory: str) -> None:
        """Sets the file's directory, which TensorBoard shows as a run."""
        self._directory = directory
        self._writer: tf.summary.SummaryWriter | None = None
        self._resumed_after: int | None = None  # Until the first write.

    def resume(self, step: int) -> None:
        """Makes TensorBoard discard the existing values of all steps after `step`.

        A resumed training repeats these steps and writes their values again.
        """
        self._resumed_after = step

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes scalars of a step and flushes them, so that a crash loses none."""
        with self._opened() as writer, writer.as_default(np.int64(step)):
            for name, value in scalars.items():
                # TensorFlow would cache a tensor for each Python number forever.
                tf.summary.scalar(name, np.float32(value))
        self.flush()

    def text(self, step: int, name: str, markdown: str) -> None:
        """Writes a text in Markdown."""
        with self._opened() as writer, writer.as_default(np.int64(step)):
            tf.summary.text(name, markdown)

    def images(self, step: int, name: str, images: np.ndarray) -> None:
        """Writes images, given as uint8 [count, height, width, channels]."""
        with self._opened() as writer, writer.as_default(np.int64(step)):
            tf.summary.image(name, images, max_outputs=len(images))

    def histogram(self, step: int, name: str, values: tf.Tensor) -> None:
        """Writes a histogram of the finite values."""
        with self._opened() as writer, writer.as_default(np.int64(step)), tf.device("CPU:0"):
            tf.summary.histogram(name, tf.boolean_mask(values, tf.math.is_finite(values)))

    def hparams(self, values: Mapping[str, Any]) -> None:
        """Writes hyperparameters for TensorBoard's hparams plugin, to compare runs."""
        # A slow import that only training needs. The plugin's `api` would import Keras too.
        from tensorboard.plugins.hparams import summary_v2

        plain = {
            name: value if isinstance(value, (bool, int, float, str)) else repr(value)
            for name, value in values.items()
            if value is not None
        }
        with self._opened() as writer, writer.as_default(0):
            # The path distinguishes runs with the same name in different directories.
            summary_v2.hparams(plain, trial_id=os.path.abspath(self._directory))

    def flush(self) -> None:
        """Flushes the file."""
        if self._writer is not None:
            with self._opened() as writer:
                writer.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            with self._opened() as writer:
                writer.close()
            self._writer = None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tf.summary.SummaryWriter]:
        """Yields TensorFlow's writer and turns its errors into errors for the user."""
        try:
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(self._directory)
            if self._resumed_after is not None:
                _write_start(self._writer, self._resumed_after + 1)
                self._resumed_after = None
            yield self._writer
        except tf.errors.OpError as error:
            what = error.message.splitlines()[0].rpartition("}} ")[2]  # Without the operation.
            raise UsageError(
                f"what TensorBoard shows cannot be written into {self._directory}: {what}"
            ) from error


def _write_start(writer: tf.summary.SummaryWriter, step: int) -> None:
    """Writes an event that makes readers discard existing values of `step` and of later steps."""
    start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    event = tf.compat.v1.Event(wall_time=time.time(), step=step, session_log=start)
    tf.raw_ops.ImportEvent(writer=writer._resource, event=event.SerializeToString())
