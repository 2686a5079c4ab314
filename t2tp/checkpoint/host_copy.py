"""Copies values to the host, so that training can continue while the copies are written."""

from collections.abc import Iterable

import tensorflow as tf

from t2tp.checkpoint.slices import Slice


def copy_to_host(values: Iterable[tuple[Slice, tf.Tensor]]) -> list[tuple[Slice, tf.Tensor]]:
    """Copies slices, from any device, into host memory that nothing else writes to."""
    with tf.device("CPU:0"):
        return [(each, _copied(value)) for each, value in values]


def _copied(value: tf.Tensor | tf.Variable) -> tf.Tensor:
    on_cpu = tf.identity(value)  # From a GPU this is a copy.
    # On a CPU device, `on_cpu` shares the variable's memory, and the next step would overwrite it.
    return tf.raw_ops.DeepCopy(x=on_cpu) if "CPU" in value.device else on_cpu
