"""The chunked loss matches the loss of whole logits, whichever dimensions are split."""

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from t2tp.ops.cross_entropy.operation import softmax_cross_entropy
from t2tp.ops.cross_entropy.projected import projected_cross_entropy
from t2tp.ops.cross_entropy.sliced_softmax import subtracted_at
from tests.ops.on_mesh import assert_close, with_gradients

OPTIONS = {"z_loss": 0.3, "label_smoothing": 0.2}
CAP = 1.5


def make_inputs(vocab=14, batch=4, length=4, d_model=6):
    random = np.random.default_rng(vocab)
    return {
        "x": (
            f"batch:{batch};length:{length};d_model:{d_model}",
            random.normal(size=(batch, length, d_model)),
        ),
        "table": (f"vocab:{vocab};d_model:{d_model}", random.normal(size=(vocab, d_model))),
        "bias": (f"vocab:{vocab}", random.normal(size=vocab)),
        "targets": (f"batch:{batch};length:{length}", random.integers(0, vocab, (batch, length))),
    }


def weights_of(targets):
    return mtf.cast(mtf.not_equal(targets, 3), tf.float32) * 0.7


def plain(x, table, bias, targets):
    vocab = table.shape.dims[0]
    logits = mtf.einsum([x, table], output_shape=targets.shape + vocab) + bias
    logits = CAP * mtf.tanh(logits * (1 / CAP))
    loss = softmax_cross_entropy(logits, targets, vocab, **OPTIONS)
    return mtf.reduce_sum(loss * weights_of(targets))


def chunked(chunk):
    def loss(x, table, bias, targets):
        options = {"soft_cap": CAP, "chunk": chunk, **OPTIONS}
        return projected_cross_entropy(x, table, targets, weights_of(targets), bias, **options)[0]

    return loss


CASES = [
    ("", ""),
    ("data:2;model:2", "batch:data;vocab:model"),
    ("data:2;model:4", "length:data;vocab:model"),  # the mesh does not divide 14 classes
    ("data:2;model:2", "batch:data;d_model:model"),
]


@pytest.mark.parametrize("chunk", [0, 1, 3])
@pytest.mark.parametrize(("mesh_shape", "layout"), CASES)
def test_any_layout_and_chunk_gives_the_plain_loss_and_gradients(mesh_shape, layout, chunk):
    inputs = make_inputs()
    wanted = with_gradients(plain, inputs)
    assert_close(with_gradients(chunked(chunk), inputs, mesh_shape, layout), wanted, 1e-6)


def test_gpus_and_cpus_subtract_the_same():
    random = np.random.default_rng(0)
    x, values = random.normal(size=(6, 5)), random.normal(size=6)
    columns = [0, 4, -1, 2, 5, 2]
    ours = [subtracted_at(x, tf.constant(columns), values, scatters=s) for s in (True, False)]
    for row, column in enumerate(columns):
        if 0 <= column < 5:
            x[row, column] -= values[row]
    for each in ours:
        np.testing.assert_array_equal(each, x)
