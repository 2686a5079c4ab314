"""Reads TensorBoard's event files."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf


def read_scalars(folder: Path) -> dict[str, dict[int, float]]:
    """name -> step -> value, from all event files of a folder; a later file wins."""
    scalars: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*"), key=lambda path: path.name):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                number = tf.make_ndarray(value.tensor).item()
                scalars.setdefault(value.tag, {})[event.step] = number
    return scalars
