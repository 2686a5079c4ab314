import threading

import pytest

from t2tp.trainer.loops import prefetched
from tests.patience import PATIENCE


def test_it_works_ahead_but_only_so_far():
    made, third = [], threading.Event()

    def make(step: int) -> int:
        made.append(step)
        if step == 2:
            third.set()
        return step

    with prefetched(make, range(100), ahead=3) as inputs:
        assert third.wait(PATIENCE)
        assert next(inputs) == 0
    assert made in ([0, 1, 2], [0, 1, 2, 3])
    assert not any(thread.name.startswith("prefetch") for thread in threading.enumerate())


def test_an_exception_is_raised_at_its_step_with_its_own_message():
    def make(step: int) -> int:
        if step == 3:
            raise OSError("shard 7 is gone")
        return step

    seen = []
    with pytest.raises(OSError, match="shard 7 is gone"), prefetched(make, range(9)) as made:
        seen.extend(made)
    assert seen == [0, 1, 2]
