"""Rows composed of fields; each field reads one feature."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from t2tp.problems.data.batch_stream import EMPTY, FeatureSpec
from t2tp.problems.data.columns import Column
from t2tp.problems.data.row_plan import RowPlan, ranges

INT = np.dtype(np.int32)
FLOAT = np.dtype(np.float32)


class Field(Protocol):
    """A reader of one feature."""

    @property
    def spec(self) -> FeatureSpec:
        """The feature's named dimensions and dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the feature's dimensions without "batch"."""

    def read(self, rows: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads slices of rows; see `ExampleSource.read`."""


class FieldSource:
    """Rows whose features are fields; an `ExampleSource`."""

    def __init__(self, rows: int, fields: Mapping[str, Field]):
        self._rows = rows
        self._fields = fields
        self.features = {name: field.spec for name, field in fields.items()}

    def __len__(self) -> int:
        return self._rows

    def shape(self, feature: str) -> tuple[int, ...]:
        """Returns the sizes of the feature's dimensions without "batch"."""
        return self._fields[feature].shape

    def read(self, feature: str, examples: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads a feature of rows; see `ExampleSource.read`."""
        return self._fields[feature].read(examples, parts)


class TokenField:
    """The tokens of a row's examples, concatenated, truncated and padded with 0.

    A field has one of three kinds, each int32 [batch, length]:

    tokens: the token ids;
    segmentation: the index of the example in the row, from 1, and 0 for padding;
    position: the position of the token in its example, from 0.
    """

    def __init__(self, column: Column, plan: RowPlan, length: int, kind: str = "tokens"):
        self.spec = FeatureSpec(("batch", "length"), INT)
        self.shape = (length,)
        self._column = column
        self._plan = plan
        self._kind = kind

    def read(self, rows: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads slices of rows; see `ExampleSource.read`."""
        length = self.shape[0]
        counts, examples = self._plan.examples_of(rows)
        begins, ends = self._column.offsets(np.stack([examples, examples + 1]))
        sizes = np.minimum(ends - begins, length)
        return fill_rows(self._column, counts, begins, sizes, length, self._kind)[:, parts[0]]


def fill_rows(
    column: Column,
    counts: np.ndarray,
    begins: np.ndarray,
    sizes: np.ndarray,
    length: int,
    kind: str,
) -> np.ndarray:
    """Copies parts of a column into rows, int32 [rows, length].

    Args:
      column: the tokens.
      counts: int64 [rows], number of parts of each row.
      begins: int64 [parts], first position of each part.
      sizes: int64 [parts], the parts' sizes.
      length: length of a row, into which its parts fit.
      kind: one of the kinds of `TokenField`.
    """
    if kind == "tokens":
        values = column.spans(begins, sizes)
    elif kind == "segmentation":
        first_of_row = counts.cumsum() - counts
        numbers = np.arange(1, len(begins) + 1) - first_of_row.repeat(counts)
        values = numbers.astype(INT).repeat(sizes)
    else:
        values = ranges(np.zeros_like(sizes), sizes)
    if len(values) == len(counts) * length:
        return values.reshape(-1, length).astype(INT)
    ends_of_rows = np.append(0, sizes.cumsum())[counts.cumsum()]
    filled = np.zeros((len(counts), length), INT)
    filled[np.arange(length) < np.diff(ends_of_rows, prepend=0)[:, None]] = values
    return filled


def token_fields(name: str, column: Column, plan: RowPlan, length: int) -> dict[str, Field]:
    """Returns the three fields of a text: `name`, `name_segmentation` and `name_position`."""
    return {
        name: TokenField(column, plan, length),
        f"{name}_segmentation": TokenField(column, plan, length, "segmentation"),
        f"{name}_position": TokenField(column, plan, length, "position"),
    }


def token_specs(name: str) -> dict[str, FeatureSpec]:
    """Returns the specs of `token_fields`."""
    spec = FeatureSpec(("batch", "length"), INT)
    return {name: spec, f"{name}_segmentation": spec, f"{name}_position": spec}


class NumberField:
    """An integer for each example, such as its class: int32 [batch]."""

    spec = FeatureSpec(("batch",), INT)
    shape = ()

    def __init__(self, column: Column, plan: RowPlan):
        self._column = column
        self._plan = plan

    def read(self, rows: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads the numbers of rows."""
        counts, examples = self._plan.examples_of(rows)
        numbers = np.zeros(len(rows), INT)
        numbers[counts > 0] = self._column.values(self._column.offsets(examples))
        return numbers


class WeightField:
    """The weight of a row, 1 for an example and 0 for an empty row: float32 [batch]."""

    spec = FeatureSpec(("batch",), FLOAT)
    shape = ()

    def read(self, rows: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads the weights of rows."""
        return (rows != EMPTY).astype(FLOAT)
