"""How the texts of stored examples are put into rows of a fixed length.

Each arrangement is an index (`row_index.py`) that one pass over the lengths of the examples makes,
in pieces, so that neither the time of a start nor its memory grows with the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from absl import logging

from t2tp.problems import packing_rows
from t2tp.problems.buckets import bucket_lengths
from t2tp.problems.columns import Column
from t2tp.problems.row_index import Index, IndexDirectory, IndexWriter, open_index, pieces
from t2tp.problems.row_plan import RowPlan

# Examples whose lengths are looked at together.
_PIECE = 1 << 18


@dataclass(frozen=True)
class Texts:
    """The texts of a split's examples.

    Attributes:
        columns: of the texts, by name: each example has one in each.
        split: its name.
        what: the examples' name in messages.
        directory: where indexes are kept; None: nowhere.
        stored: the names that the columns are stored under, if they have others here: problems
            that read the same data in other ways share the directory.
    """

    columns: dict[str, Column]
    split: str
    what: str
    directory: IndexDirectory | None = None
    stored: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(next(iter(self.columns.values())))

    def lengths(self) -> Iterator[tuple[int, np.ndarray]]:
        """Gives the lengths of the texts in pieces: the first example, int64 [columns, examples].

        They are read and not mapped: mapped pages count as the process's memory.
        """
        columns = list(self.columns.values())
        for begin, end in pieces(len(self), _PIECE):
            yield begin, np.stack([column.read_lengths(begin, end) for column in columns])

    def name(self, arrangement: str, length: int) -> str:
        """Returns the name of an index; it is the same whichever column is the inputs."""
        names = "-".join(sorted(self.stored or self.columns))
        return f"{self.split}-{names}-{arrangement}-{length}"


def one_a_row(texts: Texts, length: int) -> RowPlan:
    """Gives each example that fits a row of its own.

    Args:
        texts: of the examples.
        length: of a row.

    Raises:
        ValueError: none fits.
    """

    def make(writer: IndexWriter) -> None:
        counts = _Counts(length)
        for first, lengths in texts.lengths():
            fits = counts.fitting(lengths)
            writer.add("examples", first + np.flatnonzero(fits))
        writer.facts = counts.checked(texts.what)

    index = _open(texts, texts.name("padded", length), make, length)
    rows = index.arrays["examples"]
    return RowPlan(len(rows), None if len(rows) == len(texts) else rows)


def truncated(texts: Texts, length: int) -> RowPlan:
    """Gives each example a row, for a reader that truncates those that are too long.

    Args:
        texts: of the examples.
        length: of a row.
    """

    def make(writer: IndexWriter) -> None:
        counts = _Counts(length)
        for _, lengths in texts.lengths():
            counts.fitting(lengths)
        writer.facts = counts.facts()

    facts = open_index(texts.directory, texts.name("truncated", length), len(texts), make).facts
    if facts["too_long"]:
        logging.warning(
            "%s: of %d of %d examples only the first %d tokens are read (the longest has %d)",
            texts.what,
            facts["too_long"],
            len(texts),
            length,
            facts["longest"],
        )
    return RowPlan(len(texts))


def packed(texts: Texts, length: int, data_order: int) -> RowPlan:
    """Puts several examples into a row.

    Every text of the examples is packed into a row of the same length.

    Args:
        texts: of the examples.
        length: of a row.
        data_order: version of the order; see `stream.DATA_ORDER`. In 1 a row has as many examples
            as fit, in their order; in 2 examples near each other are put where they leave least
            room.

    Raises:
        ValueError: none fits.
    """
    pack = packing_rows.next_fit if data_order == 1 else packing_rows.first_fit_decreasing

    def make(writer: IndexWriter) -> None:
        counts = _Counts(length)
        fitting = ((first, lengths, counts.fitting(lengths)) for first, lengths in texts.lengths())
        average = max(column.size for column in texts.columns.values()) / max(1, len(texts))
        end = 0
        writer.add("begins", np.zeros(1, np.int64))
        for examples, sizes in pack(fitting, length, average):
            writer.add("examples", examples)
            writer.add("begins", end + sizes.cumsum())
            end += len(examples)
        writer.facts = counts.checked(texts.what)

    index = _open(texts, texts.name(f"packed{data_order}", length), make, length)
    begins = index.arrays["begins"]
    return RowPlan(len(begins) - 1, index.arrays["examples"], begins)


def bucketed(texts: Texts, length: int) -> list[tuple[int, RowPlan]]:
    """Shares examples out among the buckets; those that are too long are in none.

    Args:
        texts: of the examples.
        length: of the longest bucket.

    Returns:
        Of each bucket that is not empty its length and a row for each of its examples.

    Raises:
        ValueError: none fits.
    """
    sizes = bucket_lengths(length)

    def make(writer: IndexWriter) -> None:
        counts = _Counts(length)
        for first, lengths in texts.lengths():
            counts.fitting(lengths)
            longest = lengths.max(0)
            for size, shorter in zip(sizes, [*sizes[1:], -1], strict=True):
                inside = np.flatnonzero((longest > shorter) & (longest <= size))
                if len(inside):
                    writer.add(str(size), first + inside)
        writer.facts = counts.checked(texts.what)

    index = _open(texts, texts.name("bucketed", length), make, length)
    return [
        (size, RowPlan(len(index.arrays[str(size)]), index.arrays[str(size)]))
        for size in sizes
        if str(size) in index.arrays
    ]


class _Counts:
    """Counts the examples that are too long for a row."""

    def __init__(self, length: int):
        self._length = length
        self._examples = self._too_long = self._longest = 0
        self._shortest: int | None = None

    def fitting(self, lengths: np.ndarray) -> np.ndarray:
        """Returns which examples fit, for lengths [columns, examples]: bool [examples]."""
        longest = lengths.max(0)
        fits = longest <= self._length
        self._examples += len(fits)
        self._too_long += int(len(fits) - fits.sum())
        if len(fits):
            shortest = int(longest.min())
            self._shortest = min(shortest, self._shortest or shortest)
            self._longest = max(int(longest.max()), self._longest)
        return fits

    def facts(self) -> dict[str, int]:
        """Returns what was counted."""
        return {"too_long": self._too_long, "longest": self._longest}

    def checked(self, what: str) -> dict[str, int]:
        """Returns what was counted; raises ValueError if none fits."""
        if self._too_long == self._examples:
            raise ValueError(
                f"none of the {self._examples} examples of {what} fits in length {self._length}: "
                f"the shortest has {self._shortest} tokens; a length of {self._longest} holds all"
            )
        return self.facts()


def _open(texts: Texts, name: str, make: object, length: int) -> Index:
    """Opens an index of examples that fit, and says how many do not."""
    index = open_index(texts.directory, name, len(texts), make)  # type: ignore[arg-type]
    if index.facts["too_long"]:
        logging.warning(
            "%s: %d of %d examples are left out, as they are longer than length %d (the longest "
            "has %d tokens)",
            texts.what,
            index.facts["too_long"],
            len(texts),
            length,
            index.facts["longest"],
        )
    return index


def padding_share(texts: Texts, plan: RowPlan, length: int) -> float:
    """Returns which share of the positions in the rows has no token."""
    tokens = 0
    for begin, end in pieces(len(plan), _PIECE):
        _, examples = plan.of(np.arange(begin, end))
        for column in texts.columns.values():
            tokens += int((column.begins(examples + 1) - column.begins(examples)).sum())
    return 1 - tokens / (len(texts.columns) * len(plan) * length)
