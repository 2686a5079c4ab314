"""mod and floordiv: values and gradients in any layout."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

LAYOUTS = [("", ""), ("x:2", "a:x"), ("x:2;y:2", "a:x;b:y")]


def inputs():
    random = np.random.default_rng(0)
    return {
        "x1": ("a:4;b:6", 8 * random.normal(size=(4, 6))),
        "x2": ("b:6", random.uniform(1, 3, size=6)),
    }


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_mod(mesh_shape, layout):
    ours = with_gradients(mtf.mod, inputs(), mesh_shape, layout)
    wanted = in_float64(lambda x1, x2: x1 - tf.floor(x1 / x2) * x2, inputs())
    assert_close(ours, wanted, 2e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_floordiv_has_no_slope(mesh_shape, layout):
    def op(x1, x2):
        return mtf.floordiv(x1, x2) + x1 * x2

    ours = with_gradients(op, inputs(), mesh_shape, layout)
    wanted = in_float64(lambda x1, x2: tf.stop_gradient(x1 // x2) + x1 * x2, inputs())
    assert_close(ours, wanted, 2e-6)
