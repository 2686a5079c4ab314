"""`Inputs`: a stream of batches and their features.

`t2tp.problems.data.batch_stream` makes the batch of a step from examples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import tensorflow as tf

from t2tp import mtf
from t2tp.problems.data.batch_sizes import BatchSizes
from t2tp.program.program import Feature

T = TypeVar("T")

# Global arrays by name: numpy arrays, or objects that read only the slices that are selected.
Batch = Mapping[str, Any]


class BatchStream(Protocol):
    """Batches by step: the batch of step k is always the same."""

    def __getitem__(self, step: int) -> Batch:
        """Returns the batch of a step, from 0."""


@runtime_checkable
class ResumableStream(BatchStream, Protocol):
    """A stream that can change its batch size without repeating or skipping a row."""

    batch_sizes: BatchSizes

    def with_batch_sizes(self, batch_sizes: BatchSizes) -> ResumableStream:
        """Returns the same rows in batches of these sizes."""


@dataclass(frozen=True)
class Inputs:
    """A stream of batches and the features that they contain.

    Attributes:
      features: global shape in named dimensions, and dtype, of each feature.
      stream: the batches; for evaluation it has a length.
      counts: maps a batch to counts computed in Python, which are summed like metrics.
      other_features: the features of the batches with other shapes, if the shapes vary.
      metric_names: metrics to report while training; see `t2tp.problems.metrics`.
    """

    features: Mapping[str, Feature]
    stream: BatchStream
    counts: Callable[[Any], dict[str, float]] = lambda batch: {}
    other_features: Sequence[Mapping[str, Feature]] = ()
    metric_names: Sequence[str] = ()

    @property
    def kinds(self) -> list[Mapping[str, Feature]]:
        """The features of the batches: one mapping for each shape that batches have."""
        return [self.features, *self.other_features]

    @property
    def batch_size(self) -> int | None:
        """Size of the dimension `batch`; None if batches differ in it or do not have it."""
        dims = (d for kind in self.kinds for f in kind.values() for d in f.shape.dims)
        sizes = {dim.size for dim in dims if dim.name == "batch"}
        return sizes.pop() if len(sizes) == 1 else None

    def number_of_batches(self, steps: int) -> int:
        """Returns the number of batches of an evaluation, at most `steps`; 0 or -1: all.

        Raises:
          ValueError: all batches are requested, and the stream has no length.
        """
        try:
            length = len(self.stream)  # type: ignore[arg-type]
        except TypeError as error:
            if steps > 0:
                return steps
            raise ValueError(
                "the stream does not know how many batches it has: say how many to evaluate"
                " (steps=N); to a tf.data.Dataset, apply tf.data.experimental.assert_cardinality(N)"
            ) from error
        return min(length, steps) if steps > 0 else length

    def by_shapes(self, make: Callable[[Mapping[str, Feature]], T]) -> Callable[[Batch], T]:
        """Calls `make` for the features of each shape; returns a function that selects a result.

        The function returns the result for the shapes of its batch, or the first result if no
        batch should have these shapes.
        """
        made = {_shapes(kind): make(kind) for kind in self.kinds}
        default = next(iter(made.values()))
        return lambda batch: made.get(_shapes(batch), default)

    def resumed(self, before: BatchSizes | None, step: int) -> Inputs:
        """Returns the inputs of a run that resumes after `step` steps.

        `before` has the batch sizes of the run's earlier steps. None means that they all had the
        current batch size.
        """
        if before is None or not isinstance(self.stream, ResumableStream):
            return self
        sizes = before.changed(step, self.stream.batch_sizes.last)
        return replace(self, stream=self.stream.with_batch_sizes(sizes))

    @property
    def batch_sizes(self) -> BatchSizes | None:
        """The batch size of each step; None if the stream does not declare batch sizes."""
        return self.stream.batch_sizes if isinstance(self.stream, ResumableStream) else None


# Accepted by `Estimator.train` and `evaluate` instead of inputs.
InputFn = Callable[[], Inputs]


def feature_of(names: Sequence[str], sizes: Sequence[int], dtype: tf.DType) -> Feature:
    """Returns a feature with dimensions of these names and sizes."""
    dims = [mtf.Dimension(name, size) for name, size in zip(names, sizes, strict=True)]
    return Feature(mtf.Shape(dims), dtype)


def features_of_batch(batch: Batch, like: Mapping[str, Feature]) -> dict[str, Feature]:
    """Returns the features of a batch: names and dtypes from `like`, sizes from the arrays."""
    return {
        name: feature_of(feature.shape.dimension_names, _sizes(batch[name]), feature.dtype)
        for name, feature in like.items()
    }


def _shapes(values: Mapping[str, Any]) -> Hashable:
    """Returns the sizes of each feature, or of each array of a batch without reading it."""
    return tuple(sorted((name, _sizes(value)) for name, value in values.items()))


def _sizes(value: Any) -> tuple[int, ...]:
    if isinstance(value, Feature):
        return tuple(value.shape.to_integer_list)
    return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)
