"""Runs two processes of a run as two threads, to test what the processes have to agree on."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from t2tp.processes.cluster import Cluster, connect
from tests.patience import PATIENCE


class _Link:
    """Stands for `CoordinationClient`: gathers the values of two threads."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, int], list[str]] = {}
        self._barrier = threading.Barrier(2, timeout=PATIENCE)

    def of(self, process_id: int) -> Any:
        """Returns the end of the link that a process holds."""
        counts: dict[str, int] = {}
        link = self

        class End:
            on_one_host = True

            def process_allgather(self, name: str, value: str, seconds: float) -> list[str]:
                counts[name] = counts.get(name, 0) + 1
                said = link._said.setdefault((name, counts[name]), ["", ""])
                said[process_id] = value
                link._barrier.wait()
                return list(said)

        return End()


def run_two(task: Callable[[Cluster], object], num_devices: int = 2) -> list[object]:
    """Runs a task in two processes of one cluster.

    Args:
      task: called with the cluster as one of the processes sees it.
      num_devices: number of devices of both processes together.

    Returns:
      the value that the task returned, or the exception that it raised, in each process.
    """
    devices, link = connect(num_devices).devices, _Link()

    def attempt(process_id: int) -> object:
        try:
            return task(Cluster(devices, process_id, 2, link.of(process_id)))
        except Exception as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(attempt, range(2)))
