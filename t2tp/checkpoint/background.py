"""A background thread for one task at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundWorker:
    """A thread that runs one task at a time; an error of a task is raised by the next call.

    The thread does not keep an exiting program alive.
    """

    def __init__(self, name: str) -> None:
        """Prepares the thread without starting it.

        Args:
          name: of the thread.
        """
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a task is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, task: Callable[[], object]) -> None:
        """Waits for the previous task (and raises its error), then starts this one."""
        self.wait()
        self._thread = threading.Thread(target=self._do, args=(task,), name=self._name, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises the error of the last task if it has failed; does not wait."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Waits for the current task, if there is one; raises its error, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _do(self, task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException as error:
            self._error = error
