"""When a checkpoint is due."""

from collections.abc import Callable

import pytest

from t2tp.processes.cluster import Cluster
from t2tp.trainer.run_dir.run_saver import EverySeconds


def due_steps(seconds: float, step_seconds: Callable[[int], float], num_processes: int, steps: int):
    """Returns the steps at which a checkpoint is due, and how often process 0 read its clock."""
    now, reads = [0.0], [0]

    def clock() -> float:
        reads[0] += 1
        return now[0]

    cluster = Cluster(("CPU:0",) * num_processes, 0, num_processes)
    policy, due = EverySeconds(seconds, cluster, 0, clock), []
    for step in range(1, steps + 1):
        now[0] += step_seconds(step)
        if policy.is_due(step):
            due.append(step)
            policy.saved(step)
    return due, reads[0]


@pytest.mark.parametrize("num_processes", [1, 4])
def test_a_checkpoint_every_so_many_seconds(num_processes):
    due, reads = due_steps(10.0, lambda step: 1.0, num_processes, 45)
    assert due == [10, 20, 30, 40]
    due, reads = due_steps(1000.0, lambda step: 1.0, num_processes, 5000)
    assert due == [1000, 2000, 3000, 4000, 5000]
    if num_processes > 1:
        assert reads < 5 * 15  # Not after each step.


def test_steps_that_become_slower_are_noticed_on_the_way():
    due, _ = due_steps(100.0, lambda step: 0.1 if step < 300 else 1.0, 4, 900)
    assert due[0] < 600  # At step 300, 70 s are left; steps then take 1 s.
