"""Prepares the inputs of the next steps in the background while the devices compute."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """An iterator over `make(step)` for a range of steps, computed in order by a background thread.

    ```python
    with Prefetcher(lambda step: program.place(stream[step]), range(100)) as placed:
        for step, features in enumerate(placed):
            program(features, step)
    ```

    An exception in the thread is raised by the iteration, at its step.
    """

    def __init__(self, make: Callable[[int], T], steps: range, ahead: int = 2) -> None:
        """Sets the function and the steps; the thread starts on entering the context.

        Args:
          make: step -> its inputs; called in one background thread.
          steps: in order.
          ahead: max finished inputs in the queue (each holds device memory).
        """
        self._make = make
        self._steps = steps
        self._ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(ahead)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetcher[T]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):  # The thread may block on a full queue.
                self._ready.get_nowait()
            self._thread.join(0.01)

    def __iter__(self) -> Iterator[T]:
        for _ in self._steps:
            item, error = self._ready.get()
            if error is not None:
                raise error
            yield item  # type: ignore[misc]

    def _work(self) -> None:
        try:
            for step in self._steps:
                if self._closed.is_set():
                    return
                self._ready.put((self._make(step), None))
        except BaseException as error:
            self._ready.put((None, error))
