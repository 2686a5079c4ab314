"""Dropout: one mask for value and gradient, the same on any mesh."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from tests.ops.on_mesh import with_gradients

ONES = {"x": ("a:64;b:256", np.ones((64, 256)))}
WEIGHTS = 1.5 + np.sin(np.arange(64.0 * 256)).reshape(64, 256)


def test_the_gradient_has_the_mask_of_the_value():
    values = with_gradients(lambda x: mtf.dropout(x, True, rate=0.25), ONES)
    kept = values["y"] != 0
    np.testing.assert_allclose(values["y"], kept / 0.75, rtol=1e-6)
    np.testing.assert_allclose(values["d_x"], kept * WEIGHTS / 0.75, rtol=1e-5)
    assert abs(kept.mean() - 0.75) < 0.01  # 3 standard deviations


@pytest.mark.parametrize(("mesh_shape", "layout"), [("x:2;y:4", "a:x;b:y"), ("x:8", "b:x")])
def test_any_mesh_gives_the_same_mask(mesh_shape, layout):
    def op(x):
        return mtf.dropout(x, True, keep_prob=0.5, noise_shape=x.shape.dims[1:])

    values, wanted = with_gradients(op, ONES, mesh_shape, layout), with_gradients(op, ONES)
    for name in wanted:
        np.testing.assert_array_equal(values[name], wanted[name])
    assert (values["y"] == values["y"][0]).all()


def test_half_precision_drops_what_float32_drops():
    """0.9 is not a bfloat16, and neither are most random numbers."""

    def op(x):
        return mtf.dropout(x, True, keep_prob=0.9)

    short, full = (with_gradients(op, ONES, dtype=d) for d in (tf.bfloat16, tf.float32))
    np.testing.assert_array_equal(short["y"] == 0, full["y"] == 0)


def test_nothing_is_dropped_when_not_training():
    values = with_gradients(lambda x: mtf.dropout(x, False, rate=0.5), ONES)
    np.testing.assert_array_equal(values["y"], 1)


@pytest.mark.parametrize("wrong", [{}, {"rate": 0.1, "keep_prob": 0.9}, {"rate": 1.5}])
def test_wrong_rates_are_refused(wrong):
    with pytest.raises(ValueError, match="dropout"):
        with_gradients(lambda x: mtf.dropout(x, True, **wrong), ONES)
