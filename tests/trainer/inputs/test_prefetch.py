from __future__ import annotations

import threading

import pytest

from t2tp.trainer.inputs.prefetch import Prefetcher
from tests.patience import PATIENCE


def test_it_works_ahead_but_only_so_far():
    made, third = [], threading.Event()

    def make(step: int) -> int:
        made.append(step)
        if step == 2:
            third.set()
        return step

    with Prefetcher(make, range(100), ahead=2) as prefetched:
        assert third.wait(PATIENCE)
        assert next(iter(prefetched)) == 0
    # Two waited, one was in the thread's hand, one was taken, and one may have been begun after.
    assert len(made) <= 5


def test_an_exception_is_raised_at_its_step_with_its_own_message():
    def make(step: int) -> int:
        if step == 3:
            raise OSError("shard 7 is gone")
        return step

    seen = []
    with pytest.raises(OSError, match="shard 7 is gone"), Prefetcher(make, range(9)) as made:
        seen.extend(made)
    assert seen == [0, 1, 2]


def test_leaving_early_ends_the_thread():
    with Prefetcher(lambda step: step, range(10**9)) as made:
        next(iter(made))
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())
