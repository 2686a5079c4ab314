"""All tests share one process, whose CPU is eight virtual devices: meshes of up to eight."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf

NUM_DEVICES = 8
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration() for _ in range(NUM_DEVICES)],
)


@pytest.fixture(autouse=True)
def _quiet_mesh_tensorflow() -> None:
    """mesh-tensorflow warns of every variable without an initializer."""
    tf.get_logger().setLevel("ERROR")
