"""The smoke test of an experiment: a few steps of everything in a scratch directory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from absl import logging

from t2tp.processes.cluster import Cluster
from t2tp.scratch_directory import scratch_directory
from t2tp.trainer.errors import UsageError

if TYPE_CHECKING:
    from t2tp.trainer.experiment import Experiment

_STEPS = 2


def smoke_test(
    make: Callable[[str, int], Experiment], cluster: Cluster, output_dir: str
) -> dict[str, float]:
    """Trains, saves, evaluates, predicts if the model can, restores, and continues training.

    Args:
      make: (output_dir, train_steps) -> the experiment.
      cluster: the processes of the experiment.
      output_dir: not touched; a scratch directory next to it is used and deleted.

    Returns:
      The metrics after the last step.
    """
    with _scratch_directory(cluster, output_dir) as scratch:
        first = make(scratch, _STEPS)
        first.train()
        first.evaluate()
        _predict(first)
        del first  # Frees the memory of its variables for the second.
        second = make(scratch, _STEPS + 1)
        second.train()
        metrics = second.evaluate()
    logging.info("test: %d steps, a restart and another step went well", _STEPS)
    return metrics


def _predict(experiment: Experiment) -> None:
    try:
        experiment.predict("", length=2)
    except (UsageError, NotImplementedError) as error:
        logging.info("test: nothing is predicted: %s", error)


@contextlib.contextmanager
def _scratch_directory(cluster: Cluster, output_dir: str) -> Iterator[str]:
    """Creates a directory that all processes share, as they share the directory of the run."""
    parent = Path(output_dir).absolute().parent
    while not parent.exists():
        parent = parent.parent
    with contextlib.ExitStack() as stack:
        scratch = ""
        if cluster.is_main_process:
            scratch = str(stack.enter_context(scratch_directory(parent, "t2tp-test-")))
        yield cluster.process_broadcast("scratch directory", scratch)
        cluster.barrier("test")
