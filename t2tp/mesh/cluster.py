"""The devices that the processors of a mesh are bound to.

On a machine without GPUs the processors are virtual CPU devices, as many as the mesh needs:
TensorFlow can make them only before it starts up, so `connect` comes before anything else that runs
a TensorFlow operation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class Cluster:
    """The devices of a mesh, in the order of its processors.

    Attributes:
      devices: TensorFlow device names, one a processor; processor `pnum` runs on `devices[pnum]`.
    """

    devices: tuple[str, ...]

    def describe(self) -> str:
        """Says which processor is bound to which device, a line each."""
        return "\n".join(f"processor {p}: {device}" for p, device in enumerate(self.devices))


def connect(num_processors: int, devices: Sequence[str] | None = None) -> Cluster:
    """Finds (or, on CPU, makes) the devices for a mesh of `num_processors` processors.

    Args:
      num_processors: size of the mesh.
      devices: names of the devices to use; by default all GPUs of this machine or, where there is
        none, as many virtual CPU devices as the mesh has processors.

    Raises:
      ValueError: the number of devices is not the size of the mesh.
    """
    if devices is None:
        gpus = (
            [device.name for device in tf.config.list_logical_devices("GPU")] if _has_gpu() else []
        )
        devices = gpus or _virtual_cpus(num_processors)
    if len(devices) != num_processors:
        raise ValueError(
            f"The mesh has {num_processors} processors, but there are {len(devices)} devices:"
            f" {', '.join(devices)}. Choose a mesh shape whose sizes multiply to {len(devices)},"
            f" or name"
            f" {num_processors} devices (CUDA_VISIBLE_DEVICES chooses among GPUs)."
        )
    return Cluster(tuple(devices))


def _has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def _virtual_cpus(count: int) -> list[str]:
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        # It is too late once TensorFlow has started up, with one CPU device.
        with contextlib.suppress(RuntimeError):
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
            )
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    if len(names) < count:
        raise ValueError(
            f"A mesh of {count} processors needs {count} virtual CPU devices, and TensorFlow has"
            f" started up"
            f" with {len(names)}. Connect to the largest mesh first, before running any"
            f" TensorFlow operation."
        )
    return names[:count]
