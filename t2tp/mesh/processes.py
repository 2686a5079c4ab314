"""Finds the processes of a run: from arguments, from TF_CONFIG, or from Slurm."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass

# Set by t2tp_launch: how many devices each process is to bring; and how many threads an operation
# of its own is cut for, which TensorFlow reads too.
DEVICES_VARIABLE = "T2TP_DEVICES_PER_PROCESS"
THREADS_VARIABLE = "TF_NUM_INTRAOP_THREADS"

_SLURM_PORTS = 12_000  # Ports of jobs begin at 20000 + job number % this, below the ephemeral ones.
_FIRST_HOST = re.compile(r"([^,\[]+)(?:\[(\d+))?")  # Of node[07-12,15],other1: node, 07.


@dataclass(frozen=True)
class Place:
    """Which of the processes of a run this is, and where they meet.

    Attributes:
      process_id: number of this process, from 0.
      num_processes: how many there are.
      meeting_point: `host:port` at which process 0 serves the others.
      address: `host:port` at which this process serves the others, if that is settled beforehand.
    """

    process_id: int
    num_processes: int
    meeting_point: str
    address: str | None = None


def find(
    num_processes: int | None = None,
    process_id: int | None = None,
    coordinator: str | None = None,
) -> Place | None:
    """Finds this process's place among the processes of a run; None if it is the only one.

    Arguments count more than TF_CONFIG, and that more than Slurm.

    Args:
      num_processes: how many there are; give all three arguments or none.
      process_id: which this is, from 0.
      coordinator: `host:port`, the same in all processes: a free port on the host of process 0.

    Raises:
      ValueError: the arguments, or what the environment says, do not fit together.
    """
    if (num_processes, process_id, coordinator) != (None, None, None):
        return _from_arguments(num_processes, process_id, coordinator)
    if os.environ.get("TF_CONFIG"):
        return _from_tf_config()
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return _from_slurm()
    return None


def _from_arguments(
    num_processes: int | None, process_id: int | None, coordinator: str | None
) -> Place | None:
    if num_processes is None:
        raise ValueError("num_processes is missing: process_id and coordinator are not enough.")
    if num_processes < 1:
        raise ValueError(f"num_processes is {num_processes}; a run has at least 1 process.")
    if num_processes == 1 and process_id in (None, 0):
        return None
    if process_id is None or coordinator is None:
        raise ValueError(
            f"A run of {num_processes} processes needs a process_id (0 to {num_processes - 1}) and"
            " a coordinator, the host:port at which process 0 awaits the others; given are"
            f" process_id={process_id} and coordinator={coordinator}."
        )
    if not 0 <= process_id < num_processes:
        raise ValueError(
            f"process_id is {process_id}; with num_processes={num_processes} it is one of 0 to"
            f" {num_processes - 1}."
        )
    split_address(coordinator, "coordinator")
    return Place(process_id, num_processes, coordinator)


def _from_tf_config() -> Place | None:
    """Reads TF_CONFIG, which is JSON; chief and workers train, and nobody else is understood."""
    try:
        config = json.loads(os.environ["TF_CONFIG"])
        jobs = {job: list(addresses) for job, addresses in config.get("cluster", {}).items()}
        task = config.get("task", {})
        own = (task.get("type"), int(task.get("index", 0)))
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            'TF_CONFIG must be like {"cluster": {"worker": ["node1:8476", "node2:8476"]}, "task":'
            f' {{"type": "worker", "index": 0}}}}; it is {os.environ["TF_CONFIG"]!r}: {error}.'
        ) from error
    if not jobs:
        return None
    unknown = sorted(set(jobs) - {"chief", "worker"})
    if unknown:
        raise ValueError(
            f"TF_CONFIG has tasks of type {', '.join(unknown)}; processes are of type 'worker' (and"
            " the first may be of type 'chief')."
        )
    tasks = [(job, i) for job in ("chief", "worker") for i in range(len(jobs.get(job, ())))]
    if own not in tasks:
        raise ValueError(
            f"TF_CONFIG says that this is task {own}, and its cluster has"
            f" {', '.join(map(str, tasks))}."
        )
    addresses = [jobs[job][i] for job, i in tasks]
    for address in addresses:
        split_address(address, "An address in TF_CONFIG")
    if len(addresses) == 1:
        return None
    process_id = tasks.index(own)
    return Place(process_id, len(addresses), addresses[0], addresses[process_id])


def _from_slurm() -> Place:
    """Reads the variables that srun sets for each task of a step.

    TensorFlow's SlurmClusterResolver sorts the hosts by their names, in which node10 comes before
    node9, and so gives tasks the addresses of others. All we need is the host of task 0, which is
    the first of the list.
    """
    try:
        process_id = int(os.environ["SLURM_PROCID"])
        host = _FIRST_HOST.match(os.environ["SLURM_STEP_NODELIST"])
    except KeyError as error:
        raise ValueError(
            f"Slurm says that there are {os.environ['SLURM_STEP_NUM_TASKS']} tasks, and {error} is"
            " not set: start the processes with srun."
        ) from error
    if host is None:
        raise ValueError(f"SLURM_STEP_NODELIST is {os.environ['SLURM_STEP_NODELIST']!r}: no host.")
    port = 20_000 + int(os.environ.get("SLURM_JOB_ID", "0")) % _SLURM_PORTS
    meeting_point = f"{host[1]}{host[2] or ''}:{port}"
    return Place(process_id, int(os.environ["SLURM_STEP_NUM_TASKS"]), meeting_point)


def split_address(address: str, what: str) -> tuple[str, int]:
    """Splits `host:port`.

    Args:
      address: such as `node7:8476`.
      what: what to call it in the error.

    Raises:
      ValueError: it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{what} is {address!r}, and must be host:port, such as node7:8476.")
    return host, int(port)
