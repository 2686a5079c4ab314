"""Operations on tensors in head-tail order give the values of one device.

Programs are in float64, so that rounding hides no error. `test_any_layout` tests other operations.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from t2tp.layout_check.double_program import DoubleProgram
from t2tp.ops.attention.api import attention
from t2tp.ops.previous import previous
from tests.ops.on_mesh import assert_close, with_gradients

LENGTH, VOCAB = 16, mtf.Dimension("vocab", 8)
RANDOM = np.random.default_rng(0)
INPUTS = {
    "x": (f"batch:2;heads:2;length:{LENGTH};d:4", RANDOM.normal(size=(2, 2, LENGTH, 4))),
    "ids": (f"batch:2;length:{LENGTH}", RANDOM.integers(0, 8, size=(2, LENGTH))),
}


def causal(x, **options):
    memory = mtf.rename_dimension(x, "length", "memory")
    return attention(x, memory, memory, causal=True, method="blockwise", **options)


def look_up(x, ids):
    batch, _, length, d = x.shape.dims
    table = mtf.import_tf_tensor(
        x.mesh, np.arange(32.0, dtype=np.float32).reshape(8, 4), [VOCAB, d]
    )
    rows = mtf.einsum([mtf.one_hot((ids * 3) % 8, VOCAB), table], mtf.Shape([batch, length, d]))
    return causal(x) * mtf.sin(rows)


def table_rows_of_ids(x, ids):
    """Returns a sum of rows by id, which is the gradient of a look-up."""
    batch, heads, _, d = x.shape.dims
    one_hot = mtf.one_hot((ids * 3) % 8, VOCAB)
    return mtf.einsum([causal(x), one_hot], mtf.Shape([batch, heads, VOCAB, d]))


def loop(x, ids):
    """Runs a loop whose body reads ids and an activation from outside."""
    y, weight = causal(x), mtf.cast(ids % 3, tf.float32)

    def body(i, z):
        return [i + 1, z * 0.5 + mtf.sin(y * weight)]

    start = [mtf.constant(x.mesh, 0, dtype=tf.int32), mtf.zeros_like(y)]
    return mtf.while_loop(lambda i, z: mtf.less(i, 3), body, start)[1] + y


OPERATIONS = {
    "window": lambda x, ids: causal(causal(x), window=3),
    "not causal": lambda x, ids: attention(
        causal(x), *[mtf.rename_dimension(x, "length", "memory")] * 2, method="blockwise"
    ),
    "dense": lambda x, ids: causal(
        attention(causal(x), *[mtf.rename_dimension(x, "length", "memory")] * 2, method="dense")
    ),
    "dropout of weights": lambda x, ids: causal(causal(x), dropout_rate=0.5),
    "positions": lambda x, ids: (
        causal(x) * mtf.cast(mtf.range(x.mesh, x.shape.dims[2], tf.int32), tf.float32)
    ),
    "recompute": lambda x, ids: mtf.recompute_grad(
        lambda t: mtf.dropout(causal(mtf.sin(t)), True, rate=0.5), [causal(x)]
    ),
    "look-up": look_up,
    "previous": lambda x, ids: causal(previous(causal(x), x.shape.dims[2], ids // 3)),
    "sum of rows": table_rows_of_ids,
    "loop": loop,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_follows_attention_is_what_it_is_on_one_device(name):
    run = functools.partial(with_gradients, OPERATIONS[name], INPUTS, program_type=DoubleProgram)
    assert_close(run("seq:4", "length:seq;memory:seq"), run(), 1e-12)
