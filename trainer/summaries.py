"""Scalars for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf


class SummaryWriter:
    """Writes scalars to an event file, which is made when there is something to write."""

    def __init__(self, directory: str) -> None:
        """Says where.

        Args:
          directory: of the event file; TensorBoard shows each folder as a curve of its own.
        """
        self._directory = directory
        self._writer: tf.summary.SummaryWriter | None = None

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes scalars of a step, into the file at once: a crash loses none."""
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._directory)
        with self._writer.as_default(step):
            for name, value in scalars.items():
                tf.summary.scalar(name, value)
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
