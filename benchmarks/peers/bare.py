"""Runs TensorFlow operations on several virtual CPU devices, and sums over the devices."""

from __future__ import annotations

import concurrent.futures
import itertools
from collections.abc import Callable

import tensorflow as tf
import turn


class Mesh:
    """A mesh of `data` x `model` virtual devices, with as many threads as t2tp would use."""

    def __init__(self, data: int, model: int) -> None:
        """Makes the devices."""
        self._data, self._model = data, model
        count = data * model
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * count,
        )
        tf.config.threading.set_intra_op_parallelism_threads(turn.share_of_cores(count))
        self._threads = concurrent.futures.ThreadPoolExecutor(count)
        self._instances = itertools.count(1)

    def sum_over_model(self, x: tf.Tensor, pnum: tf.Tensor) -> tf.Tensor:
        """Sums over the devices with the same part of the batch; `pnum` is the device's number."""
        return self._sum(x, self._model, pnum // self._model)

    def sum_over_data(self, x: tf.Tensor, pnum: tf.Tensor) -> tf.Tensor:
        """Sums over the devices with the same part of the weights."""
        return self._sum(x, self._data, self._data + pnum % self._model)

    def _sum(self, x: tf.Tensor, size: int, group: tf.Tensor) -> tf.Tensor:
        if size == 1:
            return x
        return tf.raw_ops.CollectiveReduceV2(
            input=x,
            group_size=size,
            group_key=group,
            instance_key=next(self._instances),
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
        )

    def step(
        self, fn: Callable[..., object], make: Callable[[], list[tf.Tensor]]
    ) -> Callable[[], float]:
        """Returns a step that runs `fn(pnum, *tensors)` on each device, with tensors of `make`."""
        traced = tf.function(fn)

        def arguments(pnum: int) -> list[tf.Tensor]:
            with tf.device(f"CPU:{pnum}"):
                return [tf.constant(pnum), *make()]

        pnums = range(self._data * self._model)
        given = [arguments(pnum) for pnum in pnums]
        compute = traced.get_concrete_function(*given[0])  # traced once: devices share keys of sums

        def run(pnum: int) -> None:
            with tf.device(f"CPU:{pnum}"):
                compute(*given[pnum])

        def step() -> float:
            list(self._threads.map(run, pnums))
            return 0.0

        return step
