"""The trainer as one of several processes that do the same work."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

import tensorflow as tf

from t2tp.mesh.calls import CollectiveTimeoutError
from t2tp.mesh.cluster import Cluster, connect
from t2tp.mesh.layout import Layout
from t2tp.mesh.meeting import MissingProcessError
from t2tp.problems.problem import Problem
from t2tp.trainer.errors import UsageError
from t2tp.trainer.interrupt import TrainingInterrupted
from t2tp.trainer.run_config import RunConfig

# What processes raise when the fault is with another one.
OTHERS_FAULT = (MissingProcessError, CollectiveTimeoutError)


class OtherProcessesError(UsageError):
    """Processes were not started for the same; all of them raise it."""


def connect_as(config: RunConfig) -> Cluster:
    """Finds the devices of a run's mesh, and the other processes if there are any.

    Raises:
      LayoutError: mesh shape or layout cannot be read.
      ValueError: there are not as many devices as the mesh has processors, or the processes do not
        fit together, or TensorFlow has started with other numbers of threads than the config's.
      MissingProcessError: other processes did not come.
    """
    _choose_threads(config)
    return connect(
        Layout(config.mesh_shape, config.layout).size,
        num_processes=config.num_processes,
        process_id=config.process_id,
        coordinator=config.coordinator,
        joint=bool(config.xla),
    )


def _choose_threads(config: RunConfig) -> None:
    """Gives TensorFlow's thread pools their sizes, which cannot be changed once it has started."""
    chosen = {
        "intra_op_parallelism_threads": tf.config.threading.set_intra_op_parallelism_threads,
        "inter_op_parallelism_threads": tf.config.threading.set_inter_op_parallelism_threads,
    }
    for name, choose in chosen.items():
        threads = getattr(config, name)
        if not threads:
            continue
        try:
            choose(threads)
        except RuntimeError as error:
            raise ValueError(
                f"{name}={threads} comes too late: TensorFlow has started up with another number;"
                " make the estimator before anything else that runs a TensorFlow operation"
            ) from error


@contextlib.contextmanager
def telling_the_others(cluster: Cluster) -> Iterator[None]:
    """While this is active, an exception here ends the other processes, and they say why."""
    try:
        yield
    except (*OTHERS_FAULT, OtherProcessesError, TrainingInterrupted):  # All raise these.
        raise
    except BaseException as error:
        cluster.fail(error)
        raise


def check_same(cluster: Cluster, what: Mapping[str, Any]) -> None:
    """Refuses processes that were not started for the same.

    Args:
      cluster: the processes.
      what: values that must be the same in all of them, by name.

    Raises:
      OtherProcessesError: they are not; says in all processes which differ, and where.
    """
    mine = json.dumps({name: repr(value) for name, value in what.items()})
    first, *others = (json.loads(each) for each in cluster.exchange("run", mine))
    for process_id, values in enumerate(others, start=1):
        for name in sorted({*first, *values}):
            theirs, ours = (each.get(name, "nothing") for each in (values, first))
            if theirs != ours:
                raise OtherProcessesError(
                    f"process {process_id} has {name}={theirs}, and process 0 has {ours}: start all"
                    " processes with the same command, on the same data"
                )


def prepare_data(
    cluster: Cluster,
    problem: Problem,
    data_dir: str | PathLike[str],
    tmp_dir: str | PathLike[str] | None,
) -> None:
    """Makes a problem's data where they are missing, once where processes share the folder.

    Raises:
      ValueError, OSError: as `Problem.prepare`.
    """
    if cluster.leads:
        problem.prepare(data_dir, tmp_dir, num_workers=None)
    cluster.barrier("data of process 0", math.inf)
    if not cluster.leads:
        problem.prepare(data_dir, tmp_dir, num_workers=None)
    cluster.barrier("data of all", math.inf)
