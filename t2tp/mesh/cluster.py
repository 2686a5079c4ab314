"""The devices that the processors of a mesh are bound to, in one process or in several.

On a machine without GPUs the processors are virtual CPU devices, as many as the mesh needs:
TensorFlow can make them only before it starts up, so `connect` comes before anything else that runs
a TensorFlow operation.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp.mesh import processes
from t2tp.mesh.meeting import meet
from t2tp.mesh.peers import JOB, Peers, in_a_line

# How long processors wait for others, in a collective or at a barrier.
TIME_LIMIT = 600.0

# The most that one process makes, to try layouts out; making so many takes half a second.
MAX_VIRTUAL_CPUS = 8192

# TensorFlow is one of several processes from its start to its end: the kind of its devices, how
# many of them each process brings, and the link to the others.
_joined: tuple[str, int, Peers] | None = None


@dataclass(frozen=True)
class Cluster:
    """The devices of a mesh, in the order of its processors.

    With several processes, each holds a block of consecutive processors, in the order of the
    processes.

    Attributes:
      devices: TensorFlow device names, one a processor; processor `pnum` runs on `devices[pnum]`.
      process_id: number of this process.
      num_processes: how many processes there are.
      peers: the link to the other processes; None if there are none.
      time_limit: how long, in seconds, processors wait for others before they give up.
      nccl: whether NCCL carries the collectives: each device is a GPU on a card of its own.
    """

    devices: tuple[str, ...]
    process_id: int = 0
    num_processes: int = 1
    peers: Peers | None = None
    time_limit: float = TIME_LIMIT
    nccl: bool = False

    @property
    def local_pnums(self) -> range:
        """The processors of this process."""
        return self.pnums_of(self.process_id)

    def pnums_of(self, process_id: int) -> range:
        """The processors of a process."""
        each = len(self.devices) // self.num_processes
        return range(process_id * each, (process_id + 1) * each)

    def process_of(self, pnum: int) -> int:
        """The process that holds a processor."""
        return pnum * self.num_processes // len(self.devices)

    @property
    def leads(self) -> bool:
        """Whether this is process 0, which speaks and writes for all."""
        return self.process_id == 0

    def exchange(self, name: str, value: str, seconds: float | None = None) -> list[str]:
        """What each process says; nobody returns before all have come.

        Args:
          name: what it is about. All processes come to all exchanges of one name in the same order.
          value: what this process says.
          seconds: how long to wait for the others; by default `time_limit`.

        Returns:
          what was said, in the order of the processes.

        Raises:
          MissingProcessError: names the processes that did not come.
        """
        if self.peers is None:
            return [value]
        return self.peers.exchange(name, value, self.time_limit if seconds is None else seconds)

    def barrier(self, name: str, seconds: float | None = None) -> None:
        """Returns when all processes have come here; arguments and errors as of `exchange`."""
        self.exchange(name, "", seconds)

    def agree(self, name: str, value: str) -> str:
        """What process 0 says, when all have come; arguments and errors as of `exchange`."""
        return self.exchange(name, value)[0]

    def fail(self, error: BaseException) -> None:
        """Tells the other processes that this one ends with an error, which is theirs to say."""
        if self.peers is not None:
            self.peers.report("failed", in_a_line(error))

    def describe(self) -> str:
        """Says which processor is bound to which device, a line each."""
        return "\n".join(f"processor {p}: {device}" for p, device in enumerate(self.devices))


def connect(
    num_processors: int,
    devices: Sequence[str] | None = None,
    *,
    num_processes: int | None = None,
    process_id: int | None = None,
    coordinator: str | None = None,
    time_limit: float = TIME_LIMIT,
    joint: bool = False,
) -> Cluster:
    """Finds (or, on CPU, makes) the devices for a mesh of `num_processors` processors.

    If this is one of several processes, it meets the others; each brings the same number of
    devices. Who they are is said by the arguments or else by TF_CONFIG or Slurm.

    Args:
      num_processors: size of the mesh.
      devices: names of the devices to use, in a single process; by default all GPUs of this
        machine, or as many as the mesh has processors of those that a card was cut into or, where
        there is none, of virtual CPU devices.
      num_processes: how many processes there are.
      process_id: number of this process.
      coordinator: `host:port`, a free port on the host of process 0.
      time_limit: how long, in seconds, processors wait for others before they give up.
      joint: whether XLA is to make one program of those of all virtual CPU devices: its operations
        may use all cores, while those of separate programs have a device's share.

    Raises:
      ValueError: the number of devices is not the size of the mesh, or the processes do not fit
        together.
      MissingProcessError: other processes did not come.
    """
    place = processes.find(num_processes, process_id, coordinator)
    if place is not None:
        if devices is not None:
            raise ValueError("devices can be named only where there is a single process.")
        return _join(num_processors, place, time_limit)
    _check_share(num_processors)
    if devices is None:
        gpus = (
            [device.name for device in tf.config.list_logical_devices("GPU")] if has_gpu() else []
        )
        if gpus and not _cards_are_whole():
            gpus = gpus[:num_processors]  # Like virtual CPUs: cut for trying things out.
        devices = gpus or _virtual_cpus(num_processors, joint)
    if len(devices) != num_processors:
        raise ValueError(
            f"The mesh has {num_processors} processors, but there are {len(devices)} devices:"
            f" {', '.join(devices)}. Choose a mesh shape whose sizes multiply to {len(devices)},"
            f" or name"
            f" {num_processors} devices (CUDA_VISIBLE_DEVICES chooses among GPUs)."
        )
    nccl = all("GPU" in name for name in devices) and _cards_are_whole()
    return Cluster(tuple(devices), time_limit=time_limit, nccl=nccl)


def _join(num_processors: int, place: processes.Place, time_limit: float) -> Cluster:
    """Starts TensorFlow as one of several processes, if that was not done."""
    global _joined
    count = place.num_processes
    if num_processors % count:
        raise ValueError(
            f"The mesh has {num_processors} processors, which {count} processes cannot share"
            f" equally. Choose a mesh shape whose sizes multiply to a multiple of {count}."
        )
    each = num_processors // count
    _check_share(each)
    if _joined is None:
        kind = _local_devices(each)
        addresses = meet(place, f"a mesh of {num_processors} processors, on {kind}s")
        _joined = (kind, each, Peers(place.process_id, addresses, nccl=kind == "GPU"))
    kind, most, peers = _joined
    if each > most:
        raise ValueError(
            f"A mesh of {num_processors} processors needs {each} devices in each process, and"
            f" TensorFlow has started up with {most}. Connect to the largest mesh first."
        )
    names = (
        f"/job:{JOB}/replica:0/task:{task}/device:{kind}:{device}"
        for task in range(count)
        for device in range(each)
    )
    return Cluster(tuple(names), place.process_id, count, peers, time_limit, nccl=kind == "GPU")


def _local_devices(each: int) -> str:
    """Makes sure that this process has `each` devices; returns their kind."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    if gpus and gpus != each:
        raise ValueError(
            f"Each process has {each} processors of the mesh, and this one sees {gpus} GPUs."
            " Choose another mesh shape, or say with CUDA_VISIBLE_DEVICES which GPUs it is to use."
        )
    if gpus:
        return "GPU"
    _check_not_too_many(each)
    try:
        _make_virtual_cpus(each, joint=False)
    except RuntimeError as error:
        raise ValueError(
            "TensorFlow has started up already, as the only process: connect to the others before"
            " running any TensorFlow operation."
        ) from error
    return "CPU"


def _check_share(each: int) -> None:
    """Compares what the mesh needs of each process with what the launcher was told."""
    told = os.environ.get(processes.DEVICES_VARIABLE)
    if told is not None and int(told) != each:
        raise ValueError(
            f"The mesh needs {each} devices in each process, and t2tp_launch was told"
            f" --devices_per_process={told}."
        )


def has_gpu() -> bool:
    """Whether this process sees a GPU, so that processors of a mesh are not virtual CPUs."""
    return bool(tf.config.list_physical_devices("GPU"))


def _cards_are_whole() -> bool:
    """Whether no card is cut into several logical GPUs, which NCCL would refuse."""
    logical, physical = tf.config.list_logical_devices, tf.config.list_physical_devices
    return len(logical("GPU")) == len(physical("GPU"))


def _check_not_too_many(count: int) -> None:
    if count > MAX_VIRTUAL_CPUS:
        raise ValueError(
            f"A mesh with {count} processors in one process needs as many virtual CPU devices, and"
            f" there can be at most {MAX_VIRTUAL_CPUS}. To see what such a layout costs without"
            " devices, t2tp_trainer has --explain_layout."
        )


def _make_virtual_cpus(count: int, joint: bool) -> None:
    """Makes the devices, and gives each its share of the cores, unless they run a joint program.

    An operation that is cut for all cores while other devices keep them busy costs more than it
    gains: 2x4 devices on 2 cores ran 20 % faster without.

    Raises:
      RuntimeError: TensorFlow has started up already.
    """
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(count)],
    )
    is_chosen = tf.config.threading.get_intra_op_parallelism_threads() != 0
    if count > 1 and not joint and not is_chosen:
        # Whoever starts several processes on a host says by this what each may use.
        said = os.environ.get(processes.THREADS_VARIABLE, "")
        cores = int(said) if said.isdigit() else len(os.sched_getaffinity(0))
        tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // count))


def _virtual_cpus(count: int, joint: bool) -> list[str]:
    _check_not_too_many(count)
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        # It is too late once TensorFlow has started up, with one CPU device.
        with contextlib.suppress(RuntimeError):
            _make_virtual_cpus(count, joint)
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    if len(names) < count:
        raise ValueError(
            f"A mesh of {count} processors needs {count} virtual CPU devices, and TensorFlow has"
            f" started up"
            f" with {len(names)}. Connect to the largest mesh first, before running any"
            f" TensorFlow operation."
        )
    return names[:count]
