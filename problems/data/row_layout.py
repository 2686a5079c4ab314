"""Arranges the texts of stored examples in rows of a fixed length.

Each arrangement is an index (`row_index.py`), computed once in a pass over the examples' lengths.
The pass reads lengths in pieces, so that memory does not grow with the corpus.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from absl import logging

from t2tp.problems.data.buckets import bucket_lengths
from t2tp.problems.data.columns import Column
from t2tp.problems.data.row_index import Index, IndexDirectory, IndexWriter, open_index, pieces
from t2tp.problems.data.row_plan import RowPlan

# Lengths of consecutive examples: the index of the first example, lengths [columns, examples], and
# a mask of the examples that fit. A row has room for `length` tokens in each column.
Piece = tuple[int, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class RowTexts:
    """The texts of a split's examples.

    Attributes:
      columns: stored columns by name; each example has one text in each column. Problems that read
        the same columns share their indexes.
      what: name of the examples in messages.
      directory: directory of the indexes; None: indexes are not stored.
      examples_at_once: number of examples whose lengths to read at a time.
    """

    columns: dict[str, Column]
    split: str
    what: str
    directory: IndexDirectory | None = None
    examples_at_once: int = 1 << 18

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(next(iter(self.columns.values())))

    def lengths(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the texts' lengths in pieces: (first example, int64 [columns, examples])."""
        columns = list(self.columns.values())
        for begin, end in pieces(len(self), self.examples_at_once):
            yield begin, np.stack([column.read_lengths(begin, end) for column in columns])

    def name(self, arrangement: str, length: int) -> str:
        """Returns the name of an index; it does not depend on the order of the columns."""
        names = "-".join(sorted(self.columns))
        return f"{self.split}-{names}-{arrangement}-{length}"


def one_per_row(texts: RowTexts, length: int) -> RowPlan:
    """Makes a row for each example, except for examples that are longer than a row.

    Raises:
      ValueError: no example fits.
    """

    def write(writer: IndexWriter, pieces: Iterable[Piece]) -> None:
        for first, _, fits in pieces:
            writer.add("examples", first + np.flatnonzero(fits))

    index = _open(texts, "padded", write, length, arrays=("examples",))
    rows = index.arrays["examples"]
    return RowPlan(len(rows), None if len(rows) == len(texts) else rows)


def truncated(texts: RowTexts, length: int) -> RowPlan:
    """Puts each example into a separate row, for readers that truncate long examples."""

    def count(writer: IndexWriter, pieces: Iterable[Piece]) -> None:
        deque(pieces, maxlen=0)  # The index has no arrays.

    _open(texts, "truncated", count, length, truncates=True)
    return RowPlan(len(texts))


def pack(texts: RowTexts, length: int) -> RowPlan:
    """Packs several examples into a row; an example is in the same row in all columns.

    Raises:
      ValueError: no example fits.
    """

    def write(writer: IndexWriter, pieces: Iterable[Piece]) -> None:
        together = 2 * texts.examples_at_once
        average = max(column.size for column in texts.columns.values()) / max(1, len(texts))
        end = 0
        writer.add("begins", np.zeros(1, np.int64))
        for examples, sizes in first_fit_decreasing(pieces, length, average, together):
            writer.add("examples", examples)
            writer.add("begins", end + sizes.cumsum())
            end += len(examples)

    index = _open(texts, "packed", write, length, arrays=("examples", "begins"))
    begins = index.arrays["begins"]
    return RowPlan(len(begins) - 1, index.arrays["examples"], begins)


def bucketed(texts: RowTexts, length: int) -> list[tuple[int, RowPlan]]:
    """Distributes examples to buckets by length; leaves out examples that are too long.

    `length` is the length of the longest bucket.

    Returns:
      (length, rows with one example each) of each bucket that is not empty.

    Raises:
      ValueError: no example fits.
    """
    sizes = bucket_lengths(length)

    def write(writer: IndexWriter, pieces: Iterable[Piece]) -> None:
        for first, lengths, _ in pieces:
            longest = lengths.max(0)
            for size, shorter in zip(sizes, [*sizes[1:], -1], strict=True):
                inside = np.flatnonzero((longest > shorter) & (longest <= size))
                if len(inside):
                    writer.add(str(size), first + inside)

    index = _open(texts, "bucketed", write, length)
    return [
        (size, RowPlan(len(index.arrays[str(size)]), index.arrays[str(size)]))
        for size in sizes
        if str(size) in index.arrays
    ]


class _Counts:
    """Counts the examples that are too long for a row."""

    examples = too_long = longest = 0
    shortest: float = math.inf

    def pieces(self, texts: RowTexts, length: int) -> Iterator[Piece]:
        """Yields the lengths of texts in pieces, and counts the examples."""
        for first, lengths in texts.lengths():
            longest = lengths.max(0)
            fits = longest <= length
            self.examples += len(fits)
            self.too_long += int(len(fits) - fits.sum())
            self.shortest = min(self.shortest, int(longest.min()))
            self.longest = max(self.longest, int(longest.max()))
            yield first, lengths, fits


def _open(
    texts: RowTexts,
    arrangement: str,
    write: Callable[[IndexWriter, Iterable[Piece]], None],
    length: int,
    truncates: bool = False,
    arrays: Collection[str] = (),
) -> Index:
    """Opens an index, and warns of examples that are too long.

    `write` writes the index's arrays, given the lengths of all examples in pieces.
    """

    def make(writer: IndexWriter) -> None:
        counts = _Counts()
        write(writer, counts.pieces(texts, length))
        if not truncates and counts.too_long == counts.examples:
            raise ValueError(
                f"none of the {counts.examples} examples of {texts.what} fits in length {length}: "
                f"the shortest has {counts.shortest} tokens; a length of {counts.longest} holds all"
            )
        writer.facts = {"too_long": counts.too_long, "longest": counts.longest}

    index = open_index(texts.directory, texts.name(arrangement, length), len(texts), make, arrays)
    if index.facts.get("too_long"):
        reaction = "truncated" if truncates else "left out"
        logging.warning(
            f"{texts.what}: {index.facts['too_long']} of {len(texts)} examples are {reaction}, as"
            f" they are longer than length {length} (the longest has {index.facts.get('longest')}"
            " tokens)"
        )
    return index


def padding_share(texts: RowTexts, plan: RowPlan, length: int) -> float:
    """Returns the fraction of the rows' positions that are padding."""
    tokens = 0
    for begin, end in pieces(len(plan), texts.examples_at_once):
        _, examples = plan.examples_of(np.arange(begin, end))
        for column in texts.columns.values():
            tokens += int((column.offsets(examples + 1) - column.offsets(examples)).sum())
    return 1 - tokens / (len(texts.columns) * len(plan) * length)


# A window is a range of examples that are packed together. They fill about this number of rows;
# more rows per window waste less space.
_ROWS_OF_WINDOW = 128
_MAX_WINDOW = 1 << 14


def first_fit_decreasing(
    pieces: Iterable[Piece], length: int, average: float, together: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Packs windows of consecutive examples, each window separately.

    The examples of a window are placed from the longest to the shortest, each in the first row with
    room for it (D. S. Johnson, Near-optimal bin packing algorithms, 1973). These steps are
    sequential. But windows do not depend on each other, so the computation is vectorized over them.

    The examples' `average` length determines the number of examples in a window. About `together`
    examples, in several windows, are packed at a time.
    """
    per_row = max(1.0, length / max(1.0, average))
    window = min(1 << int(np.ceil(np.log2(_ROWS_OF_WINDOW * per_row))), _MAX_WINDOW)
    chunk = max(1, together // window) * window
    waiting = np.empty(0, np.int64)
    lengths = None
    for first, more, fits in pieces:
        waiting = np.concatenate([waiting, first + np.flatnonzero(fits)])
        more = more[:, fits]
        lengths = more if lengths is None else np.concatenate([lengths, more], axis=1)
        while len(waiting) >= chunk:
            yield _packed_windows(waiting[:chunk], lengths[:, :chunk], window, length)
            waiting, lengths = waiting[chunk:], lengths[:, chunk:]
    if lengths is not None and len(waiting):
        yield _packed_windows(waiting, lengths, window, length)


def _packed_windows(
    examples: np.ndarray, lengths: np.ndarray, window: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the examples in the order of their rows, and the number of examples per row."""
    windows = -(-len(examples) // window)
    # The last window is padded with texts of length 0, which fit anywhere.
    filled = np.zeros((len(lengths), windows * window), np.int64)
    filled[:, : len(examples)] = lengths
    rows = _rows_of_windows(filled.reshape(len(lengths), windows, window), length)
    # Rows are numbered through the windows; a row's examples keep their order.
    row = (rows + np.arange(windows)[:, None] * window).ravel()[: len(examples)]
    sizes = np.unique(row, return_counts=True)[1]
    return examples[np.argsort(row, kind="stable")], sizes


def _rows_of_windows(lengths: np.ndarray, length: int) -> np.ndarray:
    """Returns the row of each example in its window, for lengths [columns, windows, examples]."""
    columns, windows, count = lengths.shape
    order = np.argsort(-lengths.max(0), axis=1, kind="stable")
    # [examples, windows], the longest first.
    needed = [np.take_along_axis(each, order, axis=1).T.astype(np.int32) for each in lengths]
    free = [np.full((windows, count), length, np.int32) for _ in range(columns)]
    chosen = np.empty((count, windows), np.int64)
    each = np.arange(windows)
    num_rows = 0
    for rank, row in enumerate(chosen):
        # One more row than any window has used, so that there is always room.
        has_room = free[0][:, : num_rows + 1] >= needed[0][rank][:, None]
        for room, need in zip(free[1:], needed[1:], strict=True):
            has_room &= room[:, : num_rows + 1] >= need[rank][:, None]
        has_room.argmax(1, out=row)
        for room, need in zip(free, needed, strict=True):
            room[each, row] -= need[rank]
        num_rows = max(num_rows, int(row.max()) + 1)
    rows = np.empty((windows, count), np.int64)
    np.put_along_axis(rows, order, chosen.T, axis=1)
    return rows
