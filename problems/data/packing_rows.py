"""Packs examples into rows, reading their lengths in pieces.

An input piece is (index of the first example, lengths [columns, examples], mask of examples that
fit). An output piece is (examples in the order of rows, number of examples per row). A row has room
for `length` tokens in each column.
"""

from collections.abc import Iterable, Iterator

import numpy as np

Piece = tuple[int, np.ndarray, np.ndarray]

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
