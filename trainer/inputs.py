"""What a program is fed, step after step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from t2tp.mesh.program import Feature

# Global arrays by name: numpy arrays, or what reads a part of itself for a tuple of slices.
Batch = Mapping[str, Any]


class Stream(Protocol):
    """Batches by the number of the step: the data of step k is always the same."""

    def __getitem__(self, step: int) -> Batch:
        """The batch of a step, from 0."""


def no_counts(batch: Batch) -> dict[str, float]:
    """Counts nothing."""
    del batch
    return {}


# Feature names and sizes: what tells one kind of batch from another.
Shapes = tuple[tuple[str, tuple[int, ...]], ...]


def number_of_batches(stream: Stream, steps: int) -> int:
    """How many batches an evaluation has.

    Args:
      stream: of a length, or not.
      steps: at most so many; 0 or -1: all.

    Raises:
      ValueError: all are wanted of a stream that has no length.
    """
    try:
        length = len(stream)  # type: ignore[arg-type]
    except TypeError as error:
        if steps > 0:
            return steps
        raise ValueError(
            "the stream does not know how many batches it has: say how many to evaluate (steps=N);"
            " to a tf.data.Dataset, apply tf.data.experimental.assert_cardinality(N)"
        ) from error
    return min(length, steps) if steps > 0 else length


@dataclass(frozen=True)
class Inputs:
    """Batches and what is in them.

    Attributes:
      features: global shape in named dimensions, and dtype, of each feature.
      stream: the batches. One that is evaluated has a length.
      counts: batch -> numbers that the host counts in it, to be added up with the model's metrics.
      other_features: the same as `features`, for each further kind of batch that the stream has:
        shorter or longer ones.
      metric_names: of the metrics (see `t2tp.problems.metrics`) that are shown while training.
    """

    features: Mapping[str, Feature]
    stream: Stream
    counts: Callable[[Any], dict[str, float]] = no_counts
    other_features: Sequence[Mapping[str, Feature]] = ()
    metric_names: Sequence[str] = ()

    @property
    def kinds(self) -> list[Mapping[str, Feature]]:
        """The features of each kind of batch."""
        return [self.features, *self.other_features]

    @property
    def batch_size(self) -> int | None:
        """Size of the dimension `batch`; None if it is not the same in all kinds."""
        dims = (d for kind in self.kinds for f in kind.values() for d in f.shape.dims)
        sizes = {dim.size for dim in dims if dim.name == "batch"}
        return sizes.pop() if len(sizes) == 1 else None


# What `Estimator.train` and `evaluate` take as well as inputs.
InputFn = Callable[[], Inputs]


def shapes_of_features(features: Mapping[str, Feature]) -> Shapes:
    """The sizes of each feature."""
    return tuple(sorted((name, tuple(f.shape.to_integer_list)) for name, f in features.items()))


def shapes_of_batch(batch: Batch) -> Shapes:
    """The sizes of each array; nothing is read."""
    return tuple(sorted((name, _sizes(value)) for name, value in batch.items()))


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)
