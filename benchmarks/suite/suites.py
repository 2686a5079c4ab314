"""The cases of each suite, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cases import (
    before_training,
    decoding,
    layers,
    learning,
    pipelines,
    sharded_step,
    storage,
    training_step,
    weak_scaling,
)
from cases.group import Group

Cases = Mapping[str, Callable[[str], list[Group]]]

# `make bench`: less than ten minutes on two cores.
SHORT: Cases = {
    "training_step": lambda size: training_step.groups(training_step.SHORT, size),
    "decoding": lambda size: decoding.groups(("1x1",), size),
}
FULL: Cases = {
    "training_step": lambda size: training_step.groups(training_step.FULL, size),
    "wide_step": lambda size: training_step.groups(
        training_step.WIDE, "wide" if size == "design" else size
    ),
    "experts": layers.experts,
    "convolutions": layers.convolutions,
    "decoding": lambda size: decoding.groups(("1x1", "2x1", "2x2"), size),
    "start_up": before_training.start_up,
    "tracing": before_training.tracing,
    "weak_scaling": weak_scaling.groups,
    "sharded_step": sharded_step.groups,
    "pipelines": pipelines.groups,
    "input_pipeline": storage.input_pipeline,
    "checkpoints": storage.checkpoints,
}
# These cases take an hour or more, and run only if a command names them.
TRAINING = {"learning": learning.run}
SUITES = {"short": SHORT, "full": FULL}
# "tiny" checks only that everything runs.
SIZES = ("design", "tiny")
