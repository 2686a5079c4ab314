"""The assignment of stored examples to the rows that a stream samples from."""

import numpy as np

from t2tp.problems.data.batch_stream import EMPTY


class RowPlan:
    """The examples of each row. The arrays may be mapped files, to save memory."""

    def __init__(
        self, rows: int, examples: np.ndarray | None = None, offsets: np.ndarray | None = None
    ):
        """Sets the assignment.

        Args:
          rows: number of rows.
          examples: indices of the examples, row by row. Default: row i has example i.
          offsets: integers [rows + 1]; row i has `examples[offsets[i] : offsets[i + 1]]`. Default:
            each row has one example.
        """
        self._rows = rows
        self._examples = examples
        self._begins = offsets

    def __len__(self) -> int:
        """Returns the number of rows."""
        return self._rows

    @property
    def most_examples(self) -> int:
        """The largest number of examples of a row."""
        return 1 if self._begins is None else int(np.diff(self._begins).max(initial=1))

    def examples_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the examples of rows.

        Args:
          rows: int64 [rows], indices of rows; `EMPTY` for a row without examples.

        Returns:
          The number of examples of each row, int64 [rows]; and the examples' indices, concatenated,
          int64 [examples].
        """
        real = rows != EMPTY
        counts = real.astype(np.int64)
        chosen = rows[real]
        if self._begins is not None:
            first = self._begins[chosen].astype(np.int64)
            counts[real] = self._begins[chosen + 1] - first
            chosen = ranges(first, counts[real])
        if self._examples is None:
            return counts, chosen
        return counts, self._examples[chosen].astype(np.int64)


def ranges(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Concatenates the ranges of `counts[i]` numbers from `firsts[i]` on: int64 [sum of counts]."""
    return np.arange(counts.sum()) + (firsts - (counts.cumsum() - counts)).repeat(counts)
