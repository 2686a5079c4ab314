"""Binds the processors of a mesh to devices, in one process or several.

Without GPUs, each processor is bound to its own virtual CPU device. TensorFlow can create virtual
devices only before it is initialized, so call `connect` before any TensorFlow operation runs.
"""

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from t2tp.argument_types import checked
from t2tp.processes import process_spec
from t2tp.processes.coordination import JOB, CoordinationClient, one_line
from t2tp.processes.rendezvous import ending_together, rendezvous

# How long processors wait for each other in a collective or at a barrier, in seconds.
TIME_LIMIT = 600.0

# Max virtual devices of a process. Creating 8192 devices takes half a second.
MAX_VIRTUAL_CPUS = 8192

# (kind of devices, their number per process, client that talks to the other processes). Set once,
# because TensorFlow cannot change its set of processes.
_joined: tuple[str, int, CoordinationClient] | None = None


@dataclass(frozen=True)
class Cluster:
    """The devices of a mesh, in the order of its processors.

    With several processes, each has a block of consecutive processors, in process order.

    Attributes:
      devices: the TensorFlow device name of each processor.
      coordination: client that talks to the other processes; None in a single process.
      time_limit: max seconds of a step, and of waiting for another process outside steps.
      nccl: whether collectives run on NCCL, because each device is a separate physical GPU.
    """

    devices: tuple[str, ...]
    process_id: int = 0
    num_processes: int = 1
    coordination: CoordinationClient | None = None
    time_limit: float = TIME_LIMIT
    nccl: bool = False

    @property
    def on_cpu(self) -> bool:
        """Whether the devices are CPUs."""
        return "GPU" not in self.devices[0]

    @property
    def local_pnums(self) -> range:
        """The processors of this process."""
        return self.pnums_of(self.process_id)

    def pnums_of(self, process_id: int) -> range:
        """The processors of a process."""
        each = len(self.devices) // self.num_processes
        return range(process_id * each, (process_id + 1) * each)

    def process_of(self, pnum: int) -> int:
        """The process that a processor belongs to."""
        return pnum * self.num_processes // len(self.devices)

    @property
    def is_main_process(self) -> bool:
        """Whether this is process 0, which logs and writes for all."""
        return self.process_id == 0

    def process_allgather(self, name: str, value: Any, seconds: float | None = None) -> list:
        """Gathers one value per process; blocks until all processes have called.

        Args:
          name: name of this exchange. Calls with the same name must have the same order in all
            processes.
          value: the value of this process, which JSON can represent.
          seconds: how long to wait for the other processes. Default: `time_limit`.

        Returns:
          The values in process order, as JSON returns them: a tuple becomes a list.

        Raises:
          MissingProcessError: a process has not called in time; the error names it.
        """
        texts = [json.dumps(value)]
        if self.coordination is not None:
            seconds = self.time_limit if seconds is None else seconds
            texts = self.coordination.process_allgather(name, texts[0], seconds)
        return [json.loads(text) for text in texts]

    def barrier(self, name: str, seconds: float | None = None) -> None:
        """Blocks until all processes have called; arguments as for `process_allgather`."""
        self.process_allgather(name, None, seconds)

    def process_broadcast(self, name: str, value: Any) -> Any:
        """Returns process 0's value in all processes; arguments as for `process_allgather`."""
        return self.process_allgather(name, value)[0]

    def fail(self, error: BaseException) -> None:
        """Reports the error that ends this process; the other processes quote this error."""
        if self.coordination is not None:
            self.coordination.report("failed", one_line(error))

    @property
    def on_one_host(self) -> bool:
        """Whether all processes are known to run on this host."""
        return self.coordination is None or self.coordination.on_one_host

    def describe(self) -> str:
        """Lists the device of each processor, one per line."""
        return "\n".join(f"processor {p}: {device}" for p, device in enumerate(self.devices))


# The cluster of a single process that needs no devices.
ALONE = Cluster(("",))


@checked
def connect(
    num_processors: int,
    devices: Sequence[str] | None = None,
    *,
    num_processes: int | None = None,
    process_id: int | None = None,
    coordinator: str | None = None,
    time_limit: float = TIME_LIMIT,
) -> Cluster:
    """Finds the devices for a mesh of `num_processors` processors; on CPUs, creates them.

    In a run of several processes, waits for the other processes. All must have the same number of
    devices. The index of this process comes from the arguments, TF_CONFIG or Slurm.

    Args:
      num_processors: size of the mesh.
      devices: names of the devices to use, in a single process. Default: all GPUs of this machine;
        if a GPU is partitioned, the first `num_processors` logical GPUs; without GPUs,
        `num_processors` virtual CPU devices.
      num_processes: number of processes.
      process_id: index of this process, from 0.
      coordinator: `host:port`, a free port on the host of process 0.
      time_limit: see `Cluster`.

    Raises:
      ValueError: the number of devices is not the size of the mesh; the processes contradict each
        other; or this process joined others in an earlier call and now connects alone.
      MissingProcessError: other processes have not joined in time.
    """
    if num_processors < 1:
        raise ValueError(f"connect: num_processors is {num_processors}, and must be at least 1")
    spec = process_spec.find_process_spec(num_processes, process_id, coordinator)
    if spec is not None:
        if devices is not None:
            raise ValueError("devices can be named only where there is a single process.")
        return _join(num_processors, spec, time_limit)
    if _joined is not None:
        raise ValueError(
            "This process is one of several that an earlier connect() joined, and their devices are"
            " not its own alone: pass the cluster on that it returned, as in"
            " t2tp.Program(..., cluster=cluster)."
        )
    _check_share(num_processors)
    if devices is None:
        gpus = (
            [device.name for device in tf.config.list_logical_devices("GPU")] if has_gpu() else []
        )
        if gpus and not _cards_are_whole():
            gpus = gpus[:num_processors]  # Users partition a card to try out layouts.
        devices = gpus or _virtual_cpus(num_processors)
    if len(devices) != num_processors:
        raise ValueError(
            f"The mesh has {num_processors} processors, but there are {len(devices)} devices:"
            f" {', '.join(devices)}. Choose a mesh shape whose sizes multiply to {len(devices)},"
            f" or name"
            f" {num_processors} devices (CUDA_VISIBLE_DEVICES chooses among GPUs)."
        )
    nccl = all("GPU" in name for name in devices) and _cards_are_whole()
    return Cluster(tuple(devices), time_limit=time_limit, nccl=nccl)


def _join(num_processors: int, spec: process_spec.ProcessSpec, time_limit: float) -> Cluster:
    """Initializes TensorFlow, once, as one of several processes."""
    global _joined
    count = spec.num_processes
    if num_processors % count:
        raise ValueError(
            f"The mesh has {num_processors} processors, which {count} processes cannot share"
            f" equally. Choose a mesh shape whose sizes multiply to a multiple of {count}."
        )
    each = num_processors // count
    _check_share(each)
    if _joined is None:
        if eager_context.context()._initialized:
            raise ValueError(
                "TensorFlow has started up already, as the only process: connect to the others"
                " before running any TensorFlow operation."
            )
        kind = _local_devices(each)
        brings = f"a mesh of {num_processors} processors, on {kind}s"
        addresses, channels = rendezvous(spec, brings)
        with ending_together(channels):
            client = CoordinationClient(spec.process_id, addresses, nccl=kind == "GPU")
        _joined = (kind, each, client)
    kind, max_devices, coordination = _joined
    if each > max_devices:
        raise ValueError(
            f"A mesh of {num_processors} processors needs {each} devices in each process, and"
            f" TensorFlow has started with {max_devices}. Call t2tp.connect({num_processors}), for"
            " the largest mesh, before anything else."
        )
    names = (
        f"/job:{JOB}/replica:0/task:{task}/device:{kind}:{device}"
        for task in range(count)
        for device in range(each)
    )
    return Cluster(
        tuple(names), spec.process_id, count, coordination, time_limit, nccl=kind == "GPU"
    )


def _local_devices(each: int) -> str:
    """Ensures that this process has `each` devices and returns their kind."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    if gpus and gpus != each:
        raise ValueError(
            f"Each process has {each} processors of the mesh, and this one sees {gpus} GPUs."
            " Choose another mesh shape, or say with CUDA_VISIBLE_DEVICES which GPUs it is to use."
        )
    if gpus:
        return "GPU"
    _make_virtual_cpus(each)
    return "CPU"


def _check_share(each: int) -> None:
    """Checks the number of devices of a process, also against t2tp_launch's flag."""
    if each > MAX_VIRTUAL_CPUS:
        raise ValueError(
            f"A mesh with {each} processors in one process needs {each} virtual CPU devices, and"
            f" there can be at most {MAX_VIRTUAL_CPUS}. To see what such a layout costs without"
            " devices, t2tp_trainer has --explain_layout."
        )
    configured = os.environ.get(process_spec.DEVICES_VARIABLE)
    if configured is not None and int(configured) != each:
        raise ValueError(
            f"The mesh needs {each} devices in each process, and t2tp_launch was told"
            f" --devices_per_process={configured}."
        )


def has_gpu() -> bool:
    """Whether this process has a GPU. If not, it uses virtual CPU devices."""
    return bool(tf.config.list_physical_devices("GPU"))


def _cards_are_whole() -> bool:
    """Whether no card is partitioned into logical GPUs, which NCCL does not support."""
    logical, physical = tf.config.list_logical_devices, tf.config.list_physical_devices
    return len(logical("GPU")) == len(physical("GPU"))


def _make_virtual_cpus(count: int) -> None:
    """Creates the devices, gives each its share of the cores, and turns Grappler off.

    TensorFlow's graph optimizer (Grappler) takes over half of TensorFlow's time before the first
    step, on each device again, and makes no step on CPUs faster.

    While other devices keep the cores busy, parallelizing an operation over all cores costs more
    than it gains: a mesh of 2x4 devices on 2 cores ran 20 % faster without this parallelism.
    """
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(count)],
    )
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    is_chosen = tf.config.threading.get_intra_op_parallelism_threads() != 0
    if count > 1 and not is_chosen:
        threads = max(1, threads_of_an_operation() // count)
        tf.config.threading.set_intra_op_parallelism_threads(threads)


def threads_of_an_operation() -> int:
    """Returns the number of threads that TensorFlow may use for one operation on the CPU."""
    # The launcher sets this variable to each process's share of the host's cores.
    threads = os.environ.get(process_spec.THREADS_VARIABLE, "")
    given = int(threads) if threads.isdigit() else 0
    chosen = tf.config.threading.get_intra_op_parallelism_threads()
    return chosen or given or len(os.sched_getaffinity(0))


def _virtual_cpus(count: int) -> list[str]:
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        # Fails if TensorFlow is initialized already; then there is one CPU device.
        with contextlib.suppress(RuntimeError):
            _make_virtual_cpus(count)
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    if len(names) < count:
        raise ValueError(
            f"A mesh of {count} processors needs {count} virtual CPU devices, and TensorFlow has"
            f" started with {len(names)}. Call t2tp.connect({count}), for the largest mesh, before"
            " any other program or TensorFlow operation."
        )
    return names[:count]
