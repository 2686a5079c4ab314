"""How the texts of stored examples are put into rows of a fixed length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from absl import logging

from t2tp.problems.columns import Column
from t2tp.problems.fields import RowPlan


def longest(columns: Sequence[Column]) -> np.ndarray:
    """Returns the length of each example's longest text: int64 [examples]."""
    return np.maximum.reduce([column.lengths for column in columns])


def one_a_row(columns: Sequence[Column], length: int, what: str) -> RowPlan:
    """Gives each example that fits a row of its own.

    Args:
        columns: the texts of the examples.
        length: of a row.
        what: the examples' name, for the report of those that are too long.

    Raises:
        ValueError: none fits.
    """
    first = np.flatnonzero(fitting(columns, length, what))
    return RowPlan(first, first + 1)


def truncated(column: Column, length: int, what: str) -> RowPlan:
    """Gives each example a row, for a reader that truncates those that are too long.

    Args:
        column: the texts of the examples.
        length: of a row.
        what: the examples' name, for the report of those that are too long.
    """
    lengths = column.lengths
    too_long = int((lengths > length).sum())
    if too_long:
        logging.warning(
            "%s: of %d of %d examples only the first %d tokens are read (the longest has %d)",
            what,
            too_long,
            len(lengths),
            length,
            lengths.max(),
        )
    first = np.arange(len(lengths))
    return RowPlan(first, first + 1)


def packed(columns: Sequence[Column], length: int, what: str) -> RowPlan:
    """Puts as many examples into a row as fit there, in their order.

    Every text of the examples is packed into a row of the same length; the first that is full
    ends the row.

    Args:
        columns: the texts of the examples.
        length: of a row.
        what: the examples' name, for the report of those that are too long.

    Raises:
        ValueError: none fits.
    """
    fits = fitting(columns, length, what)
    count = len(fits)
    begins = [np.concatenate([[0], np.cumsum(column.lengths)]) for column in columns]
    # A row also ends before an example that is left out.
    barriers = np.append(np.flatnonzero(~fits), count)
    first, end = [], []
    example = 0
    while example < count:
        if not fits[example]:
            example += 1
            continue
        reach = min(
            int(np.searchsorted(begin, begin[example] + length, side="right")) - 1
            for begin in begins
        )
        reach = min(reach, int(barriers[np.searchsorted(barriers, example)]))
        first.append(example)
        end.append(reach)
        example = reach
    return RowPlan(np.array(first, np.int64), np.array(end, np.int64))


def fitting(columns: Sequence[Column], length: int, what: str) -> np.ndarray:
    """Returns which examples are at most so long: bool [examples]; says how many are not.

    Raises:
        ValueError: none is.
    """
    lengths = longest(columns)
    fits = lengths <= length
    left_out = int(len(fits) - fits.sum())
    if left_out == len(fits):
        raise ValueError(
            f"none of the {len(fits)} examples of {what} fits in length {length}: the shortest has "
            f"{lengths.min()} tokens; a length of {lengths.max()} holds all"
        )
    if left_out:
        logging.warning(
            "%s: %d of %d examples are left out, as they are longer than length %d (the longest "
            "has %d tokens)",
            what,
            left_out,
            len(fits),
            length,
            lengths.max(),
        )
    return fits


def padding_share(columns: Sequence[Column], plan: RowPlan, length: int) -> float:
    """Returns which share of the places in the rows has no token."""
    tokens = sum(
        int((column.begins(plan.end) - column.begins(plan.first)).sum()) for column in columns
    )
    return 1 - tokens / (len(columns) * len(plan.first) * length)
