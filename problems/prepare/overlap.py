"""Finds examples that occur in two splits.

The score on a held-out example is no evidence of generalisation if the example is also in train.
Examples are compared by 64-bit digests of their stored values. Only digests of the held-out splits
are kept in memory, 8 bytes per example; train is streamed.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from t2tp.problems.data.columns import Column
from t2tp.problems.data.permutation import mix

Split = Sequence[Mapping[str, Column]]


def report_overlaps(name: str, stored: Mapping[str, Split]) -> dict[str, dict[str, int]]:
    """Counts the examples that occur in two splits, as `overlaps` does, and warns of them."""
    overlap_counts = overlaps(stored)
    for split, counts in overlap_counts.items():
        total = sum(len(next(iter(part.values()))) for part in stored[split])
        for other, count in counts.items():
            logging.warning(
                f"{name}: {count} of {total} {split} examples also occur in {other}: their score is"
                " not evidence of generalisation"
            )
    return overlap_counts


def overlaps(
    splits: Mapping[str, Split], examples_at_once: int = 1 << 16, values_at_once: int = 1 << 20
) -> dict[str, dict[str, int]]:
    """Counts the examples of each split that occur in an earlier split.

    The first split is for training.

    Returns:
      split -> earlier split -> number of examples that occur in both, if above 0.
    """

    def all_digests(parts: Split) -> Iterator[np.ndarray]:
        yield np.empty(0, np.uint64)
        for columns in parts:
            yield from digests_of(columns, examples_at_once, values_at_once)

    (train, trained_on), *held_out = splits.items()
    held_out_digests = {
        split: np.sort(np.concatenate([*all_digests(parts)])) for split, parts in held_out
    }
    in_train = {split: np.zeros(len(digests), bool) for split, digests in held_out_digests.items()}
    for digests in all_digests(trained_on) if held_out_digests else ():
        for split, known in held_out_digests.items():
            in_train[split] |= np.isin(known, digests)
    overlap_counts: dict[str, dict[str, int]] = {}
    before: dict[str, np.ndarray] = {}
    for split, known in held_out_digests.items():
        counts = {train: int(in_train[split].sum())}
        counts |= {other: int(np.isin(known, digests).sum()) for other, digests in before.items()}
        if any(counts.values()):
            overlap_counts[split] = {other: count for other, count in counts.items() if count}
        before[split] = known
    return overlap_counts


def digests_of(
    columns: Mapping[str, Column], examples_at_once: int = 1 << 16, values_at_once: int = 1 << 20
) -> Iterator[np.ndarray]:
    """Yields the examples' digests in pieces: uint64 [examples].

    The digest is the sum, modulo 2**64, of a hash of each value. The hash depends on the value, its
    position in the example and its column.
    """
    count = len(next(iter(columns.values())))
    for first in range(0, count, examples_at_once):
        examples = np.arange(first, min(first + examples_at_once, count) + 1)
        digests = np.zeros(len(examples) - 1, np.uint64)
        for number, name in enumerate(sorted(columns)):
            offsets = columns[name].offsets(examples)
            _add_column(digests, columns[name], offsets, number, values_at_once)
        yield mix(digests)


def _add_column(
    digests: np.ndarray, column: Column, offsets: np.ndarray, number: int, at_once: int
) -> None:
    """Adds a column's values to the digests of the examples that begin at `offsets`."""
    # Salts differ between columns, and between the values and the lengths of a column.
    salt = np.uint64(2 * number + 1) << np.uint64(48)
    digests += mix(np.diff(offsets).astype(np.uint64) ^ (salt << np.uint64(1)))
    for low in range(int(offsets[0]), int(offsets[-1]), at_once):
        high = min(low + at_once, int(offsets[-1]))
        values = column.span(low, high).astype(np.uint64)
        # The examples with values in this range; parts of the first and last may be outside it.
        first, last = np.searchsorted(offsets, (low, high - 1), side="right") - 1
        begins = offsets[first : last + 1]
        edges = np.maximum(begins, low)
        lengths = np.diff(edges, append=high)
        positions = np.arange(low, high) - np.repeat(begins, lengths)
        numbers = mix(values ^ mix(positions.astype(np.uint64) ^ salt))
        digests[first : last + 1][lengths > 0] += np.add.reduceat(numbers, edges[lengths > 0] - low)
