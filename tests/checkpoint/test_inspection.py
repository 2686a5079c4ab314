"""Checkpoints with variables of any shape are described and compared."""

import math
import tempfile

import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from t2tp.checkpoint import Checkpoint, Slice, save
from t2tp.checkpoint.inspection import describe, differences

# Includes scalars and empty variables.
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
DTYPES = st.sampled_from([tf.float32, tf.bfloat16, tf.float16, tf.int64, tf.bool, tf.complex64])


def saved(directory: str, step: int, values: list[tf.Tensor]) -> Checkpoint:
    slices = [(Slice.full(f"v{n}", v.shape.as_list(), v.dtype), v) for n, v in enumerate(values)]
    return Checkpoint(save(directory, step, [slices], {}))


@settings(max_examples=25)
@given(st.lists(st.tuples(SHAPES, DTYPES, st.booleans()), min_size=1, max_size=4))
def test_variables_of_any_shape_are_shown_and_compared(kinds):
    values = [tf.cast(tf.ones(shape), dtype) for shape, dtype, _ in kinds]
    others = [
        tf.zeros_like(value) if differs else value
        for value, (_, _, differs) in zip(values, kinds, strict=True)
    ]
    with tempfile.TemporaryDirectory() as directory:
        first, second = saved(directory, 1, values), saved(directory, 2, others)
        rows = describe(first).splitlines()
        assert differences(first, first) == []
        lines = differences(first, second)
    for number, (shape, dtype, _) in enumerate(kinds):
        row = next(row for row in rows if row.startswith(f"v{number} "))
        assert f"[{', '.join(map(str, shape))}]" in row and dtype.name in row
    expected = {
        f"v{number}: {math.prod(shape)} of {math.prod(shape)}"
        for number, (shape, _, differs) in enumerate(kinds)
        if differs and math.prod(shape)
    }
    assert {line.partition(" values")[0] for line in lines} == expected
    assert all("by at most 1" in line for line in lines)
