"""A background thread for one task at a time."""

import queue
import threading
from collections.abc import Callable, Iterable

import tensorflow as tf

from t2tp.checkpoint.slices import Slice


class BackgroundWorker:
    """A thread that runs one task at a time.

    If a task failed, the next call of `start` or `wait` raises its error.

    The thread is reused: glibc may give a new thread another arena, in which it cannot reuse the
    buffers that earlier tasks freed. The thread does not keep an exiting program alive.
    """

    def __init__(self, name: str) -> None:
        """Prepares a thread with this name without starting it."""
        self._name = name
        self._thread: threading.Thread | None = None
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a task is running."""
        return not self._idle.is_set()

    def start(self, task: Callable[[], object]) -> None:
        """Waits for the previous task, raises its error if there is one, and starts this task."""
        self.wait()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._idle.clear()
        self._tasks.put(task)

    def wait(self) -> None:
        """Waits for the current task; raises its error, if there is one, only once."""
        self._idle.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Ends the thread after the current task."""
        self._tasks.put(None)
        self._thread = None

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException as error:
                self._error = error
            finally:
                del task  # It may hold copies of variables.
                self._idle.set()


def copy_to_host(values: Iterable[tuple[Slice, tf.Tensor]]) -> list[tuple[Slice, tf.Tensor]]:
    """Copies slices, from any device, into host memory that nothing else writes to."""
    with tf.device("CPU:0"):
        return [(each, _copied(value)) for each, value in values]


def _copied(value: tf.Tensor | tf.Variable) -> tf.Tensor:
    on_cpu = tf.identity(value)  # From a GPU this is a copy.
    # On a CPU device, `on_cpu` shares the variable's memory, and the next step would overwrite it.
    return tf.raw_ops.DeepCopy(x=on_cpu) if "CPU" in value.device else on_cpu
