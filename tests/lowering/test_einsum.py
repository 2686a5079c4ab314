"""Products with one-hot tensors match mesh-tensorflow's, without creating the one-hot tensors."""

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from tests.lowering import oracle

BATCH, LENGTH = mtf.Dimension("batch", 4), mtf.Dimension("length", 6)
VOCAB, D = mtf.Dimension("vocab", 8), mtf.Dimension("d", 4)
RNG = np.random.default_rng(0)
FEATURES = {
    "ids": (mtf.Shape([BATCH, LENGTH]), RNG.integers(-1, 9, (4, 6)).astype(np.int32)),
    "table": (mtf.Shape([VOCAB, D]), RNG.normal(size=(8, 4)).astype(np.float32)),
    "logits": (mtf.Shape([BATCH, LENGTH, VOCAB]), RNG.normal(size=(4, 6, 8)).astype(np.float32)),
    "rows": (mtf.Shape([LENGTH, D]), RNG.normal(size=(6, 4)).astype(np.float32)),
}
MESHES = [
    ("", ""),
    ("m:4", "vocab:m"),
    ("m:2", "d:m"),
    ("m:2;n:2", "batch:m;vocab:n"),
    ("m:2;n:4", "length:m;vocab:n"),
    ("m:2;n:2;o:2", "batch:m;vocab:n;d:o"),
]


def step(mesh, f):
    """Looks up rows with and without shared dimensions, their gradients, and sums of rows."""
    one_hot = mtf.one_hot(f["ids"], VOCAB)
    embedded = mtf.einsum([one_hot, f["table"]], [D, BATCH, LENGTH])
    picked = mtf.einsum([f["logits"], one_hot], [LENGTH, BATCH])
    (d_table, d_logits) = mtf.gradients(
        [mtf.reduce_sum(mtf.square(embedded)) + mtf.reduce_sum(picked * picked)],
        [f["table"], f["logits"]],
    )
    return {
        "embedded": embedded,
        "picked": picked,
        "d_table": d_table,
        "d_logits": d_logits,
        "per_batch": mtf.einsum([f["rows"], one_hot], [BATCH, D, VOCAB]),
        "counts": mtf.reduce_sum(one_hot, output_shape=mtf.Shape([VOCAB])),
        "scalar": mtf.einsum(
            [mtf.one_hot(mtf.constant(f["ids"].mesh, 3, dtype=tf.int32), VOCAB), f["table"]], [D]
        ),
    }


@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES)
def test_products_with_one_hot_tensors_are_right_on_any_mesh(mesh_shape, layout):
    ours = oracle.run_ours(step, FEATURES, mesh_shape, layout)
    theirs = oracle.run(step, FEATURES)
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6, err_msg=name)
