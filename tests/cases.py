"""Cases of parametrized tests."""

from collections.abc import Iterable, Sequence


def in_turn(first: Iterable[object], second: Iterable[object], times: int = 1) -> list[tuple]:
    """Pairs each element of `first` with the next `times` elements of `second`, in rotation.

    The pairs cover both lists in a fraction of the time of all pairs. Tuples are concatenated.
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
