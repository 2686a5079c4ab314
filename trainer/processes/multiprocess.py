"""Joins the processes of a run, checks that they agree, and passes failures between them."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from typing import Any

import tensorflow as tf

from t2tp.checkpoint import DifferentCheckpointsError
from t2tp.mesh.layout import Layout
from t2tp.problems.problem import Problem
from t2tp.processes.cluster import Cluster, connect
from t2tp.processes.process_spec import find_process_spec
from t2tp.processes.rendezvous import MissingProcessError
from t2tp.program.executor import CollectiveTimeoutError, DifferentProgramsError
from t2tp.trainer.errors import ProcessLostError, UsageError, as_usage_error
from t2tp.trainer.processes.interrupt import TrainingInterrupted
from t2tp.trainer.run_config import RunConfig

# Errors that are raised because another process failed.
_OTHERS_FAULT = (MissingProcessError, CollectiveTimeoutError)


class ProcessMismatchError(UsageError):
    """Processes were started with different settings or data; all processes raise this error."""


def connect_as(config: RunConfig, layout: Layout) -> Cluster:
    """Finds the devices of a run's mesh and the other processes, if any.

    Raises:
      ValueError: the number of devices is not the size of the mesh, the settings of the processes
        contradict each other, or TensorFlow has already started with other thread counts.
      MissingProcessError: other processes did not join.
    """
    _choose_threads(config)
    return connect(
        layout.size,
        num_processes=config.num_processes,
        process_id=config.process_id,
        coordinator=config.coordinator,
    )


def check_single(config: RunConfig, what: str) -> None:
    """Checks that this is the only process.

    Raises:
      UsageError: there are several processes. The message begins with `what`, a program or flag.
    """
    if find_process_spec(config.num_processes, config.process_id, config.coordinator) is not None:
        raise UsageError(f"{what} needs a single process: start it without t2tp_launch")


def _choose_threads(config: RunConfig) -> None:
    """Sets the sizes of TensorFlow's thread pools, before TensorFlow has started."""
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
                f"{name}={threads} comes too late: TensorFlow has already started with another"
                " number; create the estimator before anything that runs a TensorFlow operation"
            ) from error


@contextlib.contextmanager
def joined(join: Callable[[], Cluster]) -> Iterator[Cluster]:
    """Connects the processes; yields the cluster, and passes a failure to the other processes.

    Raises:
      UsageError: `join` raised a ValueError.
      ProcessLostError: another process was lost or did not join.
    """
    try:
        with as_usage_error(ValueError):
            cluster = join()
        try:
            yield cluster
        except (*_OTHERS_FAULT, ProcessMismatchError, DifferentProgramsError, TrainingInterrupted):
            raise  # Every process raises these errors.
        except BaseException as error:
            cluster.fail(error)  # The other processes end, and report the error.
            raise
    except _OTHERS_FAULT as error:
        raise ProcessLostError(str(error)) from error
    except DifferentProgramsError as error:
        raise ProcessMismatchError(str(error)) from error


@contextlib.contextmanager
def checking_same_checkpoint() -> Iterator[None]:
    """Converts the error of processes with different checkpoints to a ProcessMismatchError."""
    try:
        yield
    except DifferentCheckpointsError as error:
        raise ProcessMismatchError(str(error)) from error


def check_same(cluster: Cluster, what: Mapping[str, Any]) -> None:
    """Checks that all processes were started with the same settings.

    `what` has the settings by name.

    Raises:
      ProcessMismatchError: a setting differs.
    """
    own = {name: repr(value) for name, value in what.items()}
    first, *others = cluster.process_allgather("run", own)
    for process_id, values in enumerate(others, start=1):
        for name in sorted({*first, *values}):
            other, value_here = (each.get(name, "nothing") for each in (values, first))
            if other != value_here:
                raise ProcessMismatchError(
                    f"process {process_id} has {name}={other}, and process 0 has {value_here}:"
                    " start all processes with the same command, on the same data"
                )


def prepare_data(
    cluster: Cluster,
    problem: Problem,
    data_dir: str | PathLike[str],
    tmp_dir: str | PathLike[str] | None,
) -> None:
    """Prepares a problem's data if they are missing.

    Raises:
      ValueError, OSError: see `Problem.prepare`.
    """
    # Process 0 goes first. The processes that share its directory then find its data, and the
    # processes with another directory, on other hosts, prepare the data there.
    if cluster.is_main_process:
        problem.prepare(data_dir, tmp_dir, num_workers=None)
    cluster.barrier("data of process 0", math.inf)
    if not cluster.is_main_process:
        problem.prepare(data_dir, tmp_dir, num_workers=None)
    cluster.barrier("data of all", math.inf)
