"""Which stored examples are in each row of what a stream samples from."""

from __future__ import annotations

import numpy as np

from t2tp.problems.stream import EMPTY


class RowPlan:
    """The examples of each row; what it holds may be mapped files, so it takes no memory."""

    def __init__(
        self, rows: int, examples: np.ndarray | None = None, begins: np.ndarray | None = None
    ):
        """Takes the plan.

        Args:
            rows: how many there are.
            examples: integers, numbers of the examples, those of the first row first; by default
                row i has example i.
            begins: integers [rows + 1], where each row begins in `examples`, and the end; by
                default each has one.
        """
        self._rows = rows
        self._examples = examples
        self._begins = begins

    def __len__(self) -> int:
        """Returns the number of rows."""
        return self._rows

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the examples of some rows.

        Args:
            rows: int64 [rows]; `EMPTY` has none.

        Returns:
            How many each row has, int64 [rows]; and their numbers end to end, int64 [examples].
        """
        real = rows != EMPTY
        counts = real.astype(np.int64)
        chosen = rows[real]
        if self._begins is not None:
            first = self._begins[chosen].astype(np.int64)
            counts[real] = self._begins[chosen + 1] - first
            chosen = np.arange(counts.sum()) + (
                first - (counts[real].cumsum() - counts[real])
            ).repeat(counts[real])
        if self._examples is None:
            return counts, chosen
        return counts, self._examples[chosen].astype(np.int64)
