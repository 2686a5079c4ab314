"""Work that goes on beside the training, one piece at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """A thread that does one task at a time; what goes wrong in it is raised where it is asked for.

    A program that is told to leave at once does not wait for the thread.
    """

    def __init__(self, name: str) -> None:
        """Starts nothing yet.

        Args:
          name: of the thread.
        """
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a task is being done."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, task: Callable[[], object]) -> None:
        """Waits for the task before (and raises its error), then begins this one."""
        self.wait()
        self._thread = threading.Thread(target=self._do, args=(task,), name=self._name, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises the error of the last task, if it has ended with one; does not wait."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Waits for the end of the task, if there is one; raises its error, once."""
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
