"""Values to save, shared by the tests and the processes that they start."""

import numpy as np
import tensorflow as tf

from t2tp.checkpoint import Slice

SHAPE = (16, 12)
DTYPES = [
    *(tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64),
    *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.bool),
]


def table(step: int) -> np.ndarray:
    """Returns "table" at a step, float32[16, 12]; all elements and all steps differ."""
    return np.arange(16 * 12, dtype=np.float32).reshape(SHAPE) + 1000 * step


def part(begin: tuple[int, int], size: tuple[int, int]) -> Slice:
    return Slice("table", SHAPE, begin, size, tf.float32)


def of_step(step: int) -> list[tuple[Slice, tf.Tensor]]:
    """Returns the values of a small model: "table" in 4x2 slices, a scalar and a float16 vector."""
    values = [grid_value(step, row, column) for row in range(4) for column in range(2)]
    values.append((Slice.full("global_step", (), tf.int64), tf.constant(step, tf.int64)))
    half = tf.fill([6], tf.cast(step % 1000, tf.float16))
    return [
        *values,
        (Slice("half", (6,), (0,), (2,), tf.float16), half[:2]),
        (Slice("half", (6,), (2,), (4,), tf.float16), half[2:]),
    ]


def grid_value(step: int, row: int, column: int) -> tuple[Slice, tf.Tensor]:
    """Returns the slice of "table" at (row, column) of its 4x2 slices."""
    each = part((4 * row, 6 * column), (4, 6))
    return each, tf.constant(table(step)[4 * row : 4 * row + 4, 6 * column : 6 * column + 6])


def halves(step: int) -> list[list[tuple[Slice, tf.Tensor]]]:
    """Returns the values that each of two processes saves.

    Each process saves every second slice of "table". The first also saves the other variables.
    """
    values = of_step(step)
    return [values[0:8:2] + values[8:], values[1:8:2]]


def whole() -> list[Slice]:
    return [
        Slice.full("table", SHAPE, tf.float32),
        Slice.full("global_step", (), tf.int64),
        Slice.full("half", (6,), tf.float16),
    ]


def values_in(checkpoint) -> dict[str, np.ndarray]:
    """Returns all values of a checkpoint, read by TensorFlow."""
    reader = tf.train.load_checkpoint(checkpoint.prefix)
    return {name: reader.get_tensor(name) for name in checkpoint.shapes()}


def assert_is_step(checkpoint, step: int) -> None:
    """Reads all values and compares them with `of_step(step)`."""
    got_table, got_step, got_half = checkpoint.read(whole())
    np.testing.assert_array_equal(got_table, table(step))
    assert got_step.numpy() == step
    np.testing.assert_array_equal(got_half, np.full(6, step % 1000, np.float16))
    assert checkpoint.step == step
    assert checkpoint.metadata == {"seen": step * 10}
