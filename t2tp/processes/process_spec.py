"""Determines which process of a run this is, from arguments, TF_CONFIG or Slurm."""

import json
import os
import re
from dataclasses import dataclass

# Environment variables that t2tp_launch sets: devices per process, and threads per operation.
# TensorFlow reads THREADS_VARIABLE, too.
DEVICES_VARIABLE = "T2TP_DEVICES_PER_PROCESS"
THREADS_VARIABLE = "TF_NUM_INTRAOP_THREADS"

# Exit code of a process that ends because another process is lost.
LOST_EXIT_CODE = 3

# The port of a Slurm job is 20000 + job id % _SLURM_PORTS, which is below the ephemeral ports.
_SLURM_PORTS = 12_000
_FIRST_HOST = re.compile(r"([^,\[]+)(?:\[(\d+))?")  # node[07-12,15],other1 -> node, 07


@dataclass(frozen=True)
class ProcessSpec:
    """Which process of a run this is, and where process 0 is.

    Attributes:
      process_id: index of this process, from 0.
      coordinator: `host:port` at which process 0 serves the others.
      address: `host:port` at which this process serves the others, if known beforehand.
    """

    process_id: int
    num_processes: int
    coordinator: str
    address: str | None = None


def find_process_spec(
    num_processes: int | None = None, process_id: int | None = None, coordinator: str | None = None
) -> ProcessSpec | None:
    """Determines which process of a run this is; None if it is the only process.

    Arguments take precedence over TF_CONFIG, and TF_CONFIG over Slurm. Pass all three arguments or
    none. `coordinator` is `host:port`, the same in all processes: a free port on process 0's host.

    Raises:
      ValueError: the arguments or the environment are inconsistent.
    """
    if (num_processes, process_id, coordinator) != (None, None, None):
        return _from_arguments(num_processes, process_id, coordinator)
    if os.environ.get("TF_CONFIG"):
        addresses, index = parse_tf_config(os.environ["TF_CONFIG"])
        if len(addresses) < 2:
            return None
        return ProcessSpec(index, len(addresses), addresses[0], addresses[index])
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return _from_slurm()
    return None


def _from_arguments(
    num_processes: int | None, process_id: int | None, coordinator: str | None
) -> ProcessSpec | None:
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
    return ProcessSpec(process_id, num_processes, coordinator)


def parse_tf_config(text: str) -> tuple[tuple[str, ...], int]:
    """Returns the `host:port` of each task in a TF_CONFIG, and the index of this process's task.

    The tasks' type is worker; the first may be a chief. Without a cluster there are no tasks.

    Raises:
      ValueError: the text is not a TF_CONFIG of this form.
    """
    try:
        config = json.loads(text)
        jobs = {job: list(addresses) for job, addresses in config.get("cluster", {}).items()}
        task = config.get("task", {})
        own = (task.get("type"), int(task.get("index", 0)))
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            'TF_CONFIG must be like {"cluster": {"worker": ["node1:8476", "node2:8476"]}, "task":'
            f' {{"type": "worker", "index": 0}}}}; it is {text!r}: {error}.'
        ) from error
    if not jobs:
        return (), 0
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
    addresses = tuple(jobs[job][i] for job, i in tasks)
    for address in addresses:
        split_address(address, "An address in TF_CONFIG")
    return addresses, tasks.index(own)


def _from_slurm() -> ProcessSpec:
    """Reads the variables that srun sets for each task of a step.

    TensorFlow's SlurmClusterResolver is not used: it sorts hosts by name, which puts node10 before
    node9 and gives tasks wrong addresses. Only the first host is needed, on which task 0 runs.
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
    coordinator = f"{host[1]}{host[2] or ''}:{port}"
    return ProcessSpec(process_id, int(os.environ["SLURM_STEP_NUM_TASKS"]), coordinator)


def split_address(address: str, what: str) -> tuple[str, int]:
    """Splits `host:port`; for another form, raises a ValueError that calls the address `what`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{what} is {address!r}, and must be host:port, such as node7:8476.")
    return host, int(port)
