"""Prepares the inputs of the next steps in the background while the devices compute."""

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def prefetched(make: Callable[[int], T], steps: range, ahead: int = 3) -> Iterator[Iterator[T]]:
    """Yields an iterator over `make(step)`; a background thread computes the values in order.

    ```python
    with prefetched(lambda step: program.place(stream[step]), range(100)) as placed:
        for step, features in enumerate(placed):
            program(features, step)
    ```

    If `make` raises an exception, the iterator raises it at the same step.

    Args:
      make: step -> its inputs; called in one background thread.
      steps: the steps, in order.
      ahead: max number of inputs to compute before they are needed (each occupies device memory).
    """
    pool = ThreadPoolExecutor(1, "prefetch")
    rest = iter(steps)
    pending = deque(pool.submit(make, step) for step in itertools.islice(rest, ahead))

    def results() -> Iterator[T]:
        while pending:
            item = pending.popleft().result()
            pending.extend(pool.submit(make, step) for step in itertools.islice(rest, 1))
            yield item

    try:
        yield results()
    finally:
        pool.shutdown(cancel_futures=True)
