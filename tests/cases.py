"""Cases of parametrized tests."""

from collections.abc import Iterable, Sequence


def in_turn(first: Iterable[object], second: Iterable[object], times: int = 1) -> list[tuple]:
    """Pairs each of `first` with `times` of `second`, which take turns.

    Each is there as if all pairs were, at a fraction of the time; tuples are joined.
    """
    others = list(second)
    pairs = [
        (one, others[(n * times + k) % len(others)])
        for n, one in enumerate(first)
        for k in range(times)
    ]
    return [(*_members(one), *_members(other)) for one, other in pairs]


def _members(case: object) -> Sequence[object]:
    return case if isinstance(case, tuple) else (case,)
