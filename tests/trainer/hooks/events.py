"""Reads TensorBoard's event files."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Event(NamedTuple):
    """A value that was written.

    Attributes:
      plugin: of TensorBoard that shows it: `scalars`, `text`, `images`, `histograms`, `hparams`.
      name: its tag.
      step: of the training.
      value: as it was written.
      data: what else the plugin is told.
    """

    plugin: str
    name: str
    step: int
    value: np.ndarray
    data: bytes


def read(directory: Path, *, was_killed: bool = False) -> Iterator[Event]:
    """All values in the event files of a directory, the oldest file first.

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
    """name -> step -> value, from all event files of a directory; a later file wins."""
    scalars: dict[str, dict[int, float]] = {}
    for event in read(directory, was_killed=was_killed):
        if event.plugin == "scalars":
            scalars.setdefault(event.name, {})[event.step] = event.value.item()
    return scalars


def read_log(path: Path, event: str = "") -> list[dict]:
    """The lines of a log of JSON, or those of an event."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [line for line in lines if event in ("", line["event"])]


def read_texts(directory: Path) -> dict[tuple[str, int], str]:
    """(name, step) -> text, likewise."""
    return {
        (event.name, event.step): event.value.item().decode()
        for event in read(directory)
        if event.plugin == "text"
    }
