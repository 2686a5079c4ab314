"""What is written for TensorBoard."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2tp.trainer.errors import UsageError


class SummaryWriter:
    """Writes to an event file, which is made when there is something to write.

    Whatever writes raises a `UsageError` if that cannot be done; the disk is full, say.
    """

    def __init__(self, directory: str) -> None:
        """Says where.

        Args:
          directory: of the event file; TensorBoard shows each folder as a curve of its own.
        """
        self._directory = directory
        self._writer: tf.summary.SummaryWriter | None = None
        self._resumed_after: int | None = None  # Not yet written.

    def resume(self, step: int) -> None:
        """Tells TensorBoard to forget what earlier files have of later steps: they come again.

        Args:
          step: how many steps are done.
        """
        self._resumed_after = step

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes scalars of a step, into the file at once: a crash loses none."""
        with self._opened() as writer, writer.as_default(step):
            for name, value in scalars.items():
                tf.summary.scalar(name, value)
        self.flush()

    def text(self, step: int, name: str, markdown: str) -> None:
        """Writes a text, in which TensorBoard reads Markdown."""
        with self._opened() as writer, writer.as_default(step):
            tf.summary.text(name, markdown)

    def images(self, step: int, name: str, pictures: np.ndarray) -> None:
        """Writes pictures, all of them: uint8 [count, height, width, channels]."""
        with self._opened() as writer, writer.as_default(step):
            tf.summary.image(name, pictures, max_outputs=len(pictures))

    def histogram(self, step: int, name: str, values: tf.Tensor) -> None:
        """Writes how values are distributed. Those that are not finite are left out."""
        with self._opened() as writer, writer.as_default(step), tf.device("CPU:0"):
            tf.summary.histogram(name, tf.boolean_mask(values, tf.math.is_finite(values)))

    def hparams(self, values: Mapping[str, Any]) -> None:
        """Writes hyperparameters, by which TensorBoard compares runs (its hparams plugin)."""
        from tensorboard.plugins.hparams import api  # Takes long, and only training needs it.

        plain = {
            name: value if isinstance(value, (bool, int, float, str)) else repr(value)
            for name, value in values.items()
            if value is not None
        }
        with self._opened() as writer, writer.as_default(0):
            # Runs of one name in different folders are different runs.
            api.hparams(plain, trial_id=os.path.abspath(self._directory))

    def flush(self) -> None:
        """Sees to it that all is in the file."""
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
        """TensorFlow's writer; while it is in use, its errors become the user's."""
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
    """Writes the event at which readers forget earlier values from a step on."""
    start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    event = tf.compat.v1.Event(wall_time=time.time(), step=step, session_log=start)
    tf.raw_ops.ImportEvent(writer=writer._resource, event=event.SerializeToString())
