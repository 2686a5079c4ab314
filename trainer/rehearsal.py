"""A few steps of everything, in a folder that is thrown away: does this experiment work at all?"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from absl import logging

from t2tp.mesh.cluster import Cluster
from t2tp.trainer.errors import UsageError

if TYPE_CHECKING:
    from t2tp.trainer.experiment import Experiment

_STEPS = 2


def rehearse(
    make: Callable[[str, int], Experiment], cluster: Cluster, output_dir: str
) -> dict[str, float]:
    """Trains, saves, evaluates, predicts if the model can, restores, and trains on.

    Args:
      make: (output_dir, train_steps) -> the experiment.
      cluster: the processes that do it.
      output_dir: a scratch folder beside it is used, and removed; itself it is not touched.

    Returns:
      the metrics after the last step.
    """
    with _scratch_folder(cluster, output_dir) as scratch:
        first = make(scratch, _STEPS)
        first.train()
        first.evaluate()
        _predict(first)
        del first  # Its variables would take the room of the next one's.
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
def _scratch_folder(cluster: Cluster, output_dir: str) -> Iterator[str]:
    """A folder that all processes share, as they share the folder of the run."""
    parent = Path(output_dir).absolute().parent
    while not parent.exists():
        parent = parent.parent
    made = tempfile.mkdtemp(prefix="t2tp-test-", dir=parent) if cluster.leads else ""
    scratch = cluster.agree("scratch folder", made)
    try:
        yield scratch
        cluster.barrier("test")
    finally:
        if cluster.leads:
            shutil.rmtree(scratch, ignore_errors=True)
