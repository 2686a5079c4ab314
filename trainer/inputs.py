"""What a program is fed, step after step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

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


@dataclass(frozen=True)
class Inputs:
    """Batches and what is in them.

    Attributes:
      features: global shape in named dimensions, and dtype, of each feature.
      stream: the batches. One that is evaluated has a length.
      counts: batch -> numbers that the host counts in it, to be added up with the model's metrics.
    """

    features: Mapping[str, Feature]
    stream: Stream
    counts: Callable[[Batch], dict[str, float]] = no_counts

    @property
    def batch_size(self) -> int:
        """Size of the dimension `batch`."""
        dims = (dim for feature in self.features.values() for dim in feature.shape.dims)
        return next(dim.size for dim in dims if dim.name == "batch")
