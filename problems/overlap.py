"""Which examples of one split stand in another: an evaluation on them says nothing.

Examples are compared by digests of 64 bits of what is stored of them. Only those of the held-out
splits are kept in memory, 8 bytes an example; train is gone through once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from t2tp.problems.columns import Column
from t2tp.problems.permutation import mix

# Values that are read at once, and examples whose digests are made at once.
_VALUES_AT_ONCE = 1 << 20
_EXAMPLES_AT_ONCE = 1 << 16

Split = Sequence[Mapping[str, Column]]


def overlaps(splits: Mapping[str, Split]) -> dict[str, dict[str, int]]:
    """Counts the examples of each split that stand in a split before it.

    Args:
        splits: the columns of each split, in one or several parts; the first is trained on.

    Returns:
        split -> split before it -> how many examples of the former stand in the latter, where
        there are any.
    """
    (train, columns), *held_out = splits.items()
    kept = {split: np.sort(np.concatenate([*_all_digests(parts)])) for split, parts in held_out}
    in_train = {split: np.zeros(len(digests), bool) for split, digests in kept.items()}
    for digests in _all_digests(columns) if kept else ():
        for split, known in kept.items():
            in_train[split] |= np.isin(known, digests)
    found: dict[str, dict[str, int]] = {}
    before: dict[str, np.ndarray] = {}
    for split, known in kept.items():
        counts = {train: int(in_train[split].sum())}
        counts |= {other: int(np.isin(known, digests).sum()) for other, digests in before.items()}
        if any(counts.values()):
            found[split] = {other: count for other, count in counts.items() if count}
        before[split] = known
    return found


def _all_digests(parts: Split) -> Iterable[np.ndarray]:
    yield np.empty(0, np.uint64)
    for columns in parts:
        yield from digests_of(columns)


def digests_of(columns: Mapping[str, Column]) -> Iterator[np.ndarray]:
    """Gives a digest for each example, uint64 [examples], some thousands at a time.

    The digest is the sum modulo 2**64 of a random number for each value, which depends on the
    value, its place in the example and its column.
    """
    count = len(next(iter(columns.values())))
    for first in range(0, count, _EXAMPLES_AT_ONCE):
        examples = np.arange(first, min(first + _EXAMPLES_AT_ONCE, count) + 1)
        digests = np.zeros(len(examples) - 1, np.uint64)
        for number, name in enumerate(sorted(columns)):
            _add_column(digests, columns[name], columns[name].begins(examples), number)
        yield mix(digests)


def _add_column(digests: np.ndarray, column: Column, begins: np.ndarray, number: int) -> None:
    """Adds the values of a column to the digests of examples that begin at these places."""
    salt = np.uint64(2 * number + 1) << np.uint64(48)
    digests += mix(np.diff(begins).astype(np.uint64) ^ (salt << np.uint64(1)))
    for low in range(int(begins[0]), int(begins[-1]), _VALUES_AT_ONCE):
        high = min(low + _VALUES_AT_ONCE, int(begins[-1]))
        values = column.span(low, high).astype(np.uint64)
        # The examples that have values here, of the first and last perhaps only some.
        first, last = np.searchsorted(begins, (low, high - 1), side="right") - 1
        here = begins[first : last + 1]
        edges = np.maximum(here, low)
        lengths = np.diff(edges, append=high)
        places = np.arange(low, high) - np.repeat(here, lengths)
        numbers = mix(values ^ mix(places.astype(np.uint64) ^ salt))
        digests[first : last + 1][lengths > 0] += np.add.reduceat(numbers, edges[lengths > 0] - low)
