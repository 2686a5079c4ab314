"""The batch size of each step, for a run that is resumed with another batch size.

A stream reads its rows in an order that does not depend on the batch size. So its position is the
number of rows read so far, which the batch sizes of the earlier steps determine:

    sizes = BatchSizes(((0, 8), (10, 4)))  # batches of 8 rows, and of 4 rows from step 10 on
    sizes.rows_before(10)                  # 80
    sizes.rows_before(12)                  # 88: step 12 reads rows 88 to 91

Checkpoints store the changes, so a resumed run neither repeats nor skips a row.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchSizes:
    """The global batch size of each step of a run.

    Attributes:
      changes: (first step, batch size) pairs in the order of steps; the first pair is for step 0.
    """

    changes: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        """Raises ValueError if the steps or sizes are impossible."""
        steps = [step for step, _ in self.changes]
        if steps[:1] != [0] or sorted({*steps}) != steps or any(n < 1 for _, n in self.changes):
            raise ValueError(f"{self.changes} are no batch sizes from steps on")

    @classmethod
    def of(cls, batch_size: int | BatchSizes) -> BatchSizes:
        """Converts a constant batch size to `BatchSizes`; returns `BatchSizes` unchanged."""
        return batch_size if isinstance(batch_size, BatchSizes) else cls(((0, batch_size),))

    @property
    def last(self) -> int:
        """The batch size after the last change."""
        return self.changes[-1][1]

    def at(self, step: int) -> int:
        """Returns the batch size of a step."""
        return next(size for first, size in reversed(self.changes) if first <= step)

    def rows_before(self, step: int) -> int:
        """Returns the number of rows in all batches before a step."""
        ends = [first for first, _ in self.changes[1:]] + [step]
        return sum(
            size * max(0, min(end, step) - first)
            for (first, size), end in zip(self.changes, ends, strict=True)
        )

    def changed(self, step: int, batch_size: int) -> BatchSizes:
        """Returns these batch sizes before a step, and `batch_size` from the step on."""
        before = tuple(change for change in self.changes if change[0] < step)
        if before and before[-1][1] == batch_size:
            return BatchSizes(before)
        return BatchSizes((*before, (step, batch_size)))
