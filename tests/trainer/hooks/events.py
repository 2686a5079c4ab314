"""Reads TensorBoard's event files."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Event(NamedTuple):
    """A value in an event file.

    Attributes:
      plugin: TensorBoard's plugin for it: `scalars`, `text`, `images`, `histograms`, `hparams`.
      name: tag of the value.
      step: training step.
      value: the stored value.
      data: further data for the plugin.
    """

    plugin: str
    name: str
    step: int
    value: np.ndarray
    data: bytes


def read(directory: Path, *, was_killed: bool = False) -> Iterator[Event]:
    """Yields all values in the event files of a directory, the oldest file first.

    A process that was killed may leave half a record at the end of its file.
    """
    left = tf.errors.DataLossError if was_killed else ()
    for path in sorted(directory.glob("events.out.tfevents.*"), key=lambda path: path.name):
        with contextlib.suppress(left):
            for event in tf.compat.v1.train.summary_iterator(str(path)):
                for value in event.summary.value:
                    about = value.metadata.plugin_data
                    array = tf.make_ndarray(value.tensor)
                    yield Event(about.plugin_name, value.tag, event.step, array, about.content)


def read_scalars(directory: Path, *, was_killed: bool = False) -> dict[str, dict[int, float]]:
    """Returns values by name and step, from all event files of a directory.

    If several files have a value of the same name and step, the value in the last file is returned.
    """
    scalars: dict[str, dict[int, float]] = {}
    for event in read(directory, was_killed=was_killed):
        if event.plugin == "scalars":
            scalars.setdefault(event.name, {})[event.step] = event.value.item()
    return scalars


def read_log(path: Path, event: str = "") -> list[dict]:
    """Returns the lines of a JSON log, or only the lines of one event."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [line for line in lines if event in ("", line["event"])]


def read_texts(directory: Path) -> dict[tuple[str, int], str]:
    """Returns texts by (name, step), from all event files of a directory."""
    return {
        (event.name, event.step): event.value.item().decode()
        for event in read(directory)
        if event.plugin == "text"
    }
