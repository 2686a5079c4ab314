"""Softmax: the plain one's values and gradients, in float32, wherever its dimension is split."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

LAYOUTS = [
    ("", ""),
    ("x:2", "a:x"),
    ("x:4", "c:x"),
    ("x:2;y:4", "a:x;c:y"),
    ("x:2;y:2", "b:x;c:y"),
]


def inputs():
    x = 3.0 * np.random.default_rng(0).normal(size=(4, 6, 8))
    return {"x": ("a:4;b:6;c:8", x)}


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
@pytest.mark.parametrize("dim", ["a", "b", "c"])
def test_any_layout_gives_the_plain_softmax(mesh_shape, layout, dim):
    ours = with_gradients(
        lambda x: mtf.softmax(x, x.shape.get_dim_by_name(dim)), inputs(), mesh_shape, layout
    )
    wanted = in_float64(lambda x: tf.nn.softmax(x, axis="abc".index(dim)), inputs())
    assert_close(ours, wanted, 2e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_its_gradient_has_a_gradient(mesh_shape, layout):
    def ours(x):
        y = mtf.softmax(x, x.shape.get_dim_by_name("c"))
        (d_x,) = mtf.gradients([mtf.reduce_sum(mtf.square(y))], [x])
        return d_x

    def plain(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(tf.nn.softmax(x)))
        return tape.gradient(loss, x)

    assert_close(
        with_gradients(ours, inputs(), mesh_shape, layout), in_float64(plain, inputs()), 2e-6
    )


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
@pytest.mark.parametrize("extra", [None, 0.5])
def test_bfloat16_is_rounded_once(mesh_shape, layout, extra):
    """At the end: sums of many small parts are not lost on the way."""

    def ours(x):
        extra_logit = None
        if extra is not None:
            extra_logit = mtf.constant(x.mesh, extra, dtype=x.dtype)
        return mtf.softmax(x, x.shape.get_dim_by_name("c"), extra_logit=extra_logit)

    def plain(x):
        if extra is None:
            return tf.nn.softmax(x)
        padded = tf.pad(x, [[0, 0], [0, 0], [0, 1]], constant_values=extra)
        return tf.nn.softmax(padded)[..., :-1]

    values = with_gradients(ours, inputs(), mesh_shape, layout, tf.bfloat16)
    wanted = in_float64(plain, inputs(), tf.bfloat16)
    assert_close({"y": values["y"]}, {"y": wanted["y"]}, 2**-8)


def test_a_dimension_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no dimension of"):
        with_gradients(lambda x: mtf.softmax(x, mtf.Dimension("d", 2)), inputs())


def test_more_dimensions_than_tensorflows_kernel_takes():
    x = np.random.default_rng(0).normal(size=(2, 2, 1, 3, 2, 4))
    given = {"x": ("a:2;b:2;c:1;d:3;e:2;f:4", x)}
    for place, dim in enumerate("abcdef"):
        ours = with_gradients(
            lambda x, dim=dim: mtf.softmax(x, x.shape.get_dim_by_name(dim)), given, "x:2", "a:x"
        )
        wanted = in_float64(lambda x, place=place: tf.nn.softmax(x, axis=place), given)
        assert_close(ours, wanted, 2e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("x:4", "c:x")])
def test_float64_is_computed_in_float64(mesh_shape, layout):
    def step(mesh, features):
        x = features["x"]
        y = mtf.softmax(x, x.shape.dims[-1])
        return {"y": y, "dx": mtf.gradients([y * x], [x])[0]}

    shape, array = inputs()["x"]
    feature = t2tp.Feature(shape, tf.float64)
    program = t2tp.Program(step, {"x": feature}, mesh_shape=mesh_shape, layout=layout)
    x = tf.constant(array)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.softmax(x)
        loss = tf.reduce_sum(y * x)
    outputs = program({"x": array})
    np.testing.assert_allclose(outputs["y"], y, rtol=1e-13)
    np.testing.assert_allclose(outputs["dx"], tape.gradient(loss, x), atol=1e-13)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
@pytest.mark.parametrize("extra", [None, 0.5])
def test_any_layout_gives_the_plain_logsumexp(mesh_shape, layout, extra):
    def plain(x):
        if extra is not None:
            x = tf.pad(x, [[0, 0], [0, 0], [0, 1]], constant_values=extra)
        return tf.reduce_logsumexp(x, -1)

    ours = with_gradients(
        lambda x: mtf.reduce_logsumexp(x, x.shape.dims[-1], extra), inputs(), mesh_shape, layout
    )
    assert_close(ours, in_float64(plain, inputs()), 2e-6)


@pytest.mark.parametrize("layout", ["", "b:x"])
def test_infinite_logits(layout):
    """A row of -inf has the logarithm of 0, and no gradient; one of inf is its largest element."""
    x = np.float32([[-np.inf] * 4, [0.0, -np.inf, 0.0, 0.0], [0.0, np.inf, 1.0, 2.0]])

    def step(mesh, given):
        del mesh
        y = mtf.reduce_logsumexp(given["x"], given["x"].shape.dims[-1])
        return {"y": y, "dx": mtf.gradients([y], [given["x"]])[0]}

    feature = t2tp.Feature("a:3;b:4")
    program = t2tp.Program(step, {"x": feature}, mesh_shape="x:2", layout=layout)
    outputs = program({"x": x})
    np.testing.assert_allclose(outputs["y"], [-np.inf, np.log(3.0), np.inf], rtol=1e-6)
    third = 1 / 3
    np.testing.assert_allclose(outputs["dx"][:2], [[0] * 4, [third, 0, third, third]], rtol=1e-6)


def test_the_gradient_of_logsumexp_has_a_gradient():
    def ours(x):
        (d_x,) = mtf.gradients([mtf.reduce_logsumexp(x, x.shape.dims[-1])], [x])
        return d_x

    assert_close(
        with_gradients(ours, inputs(), "x:4", "c:x"),
        in_float64(lambda x: tf.nn.softmax(x), inputs()),
        2e-6,
    )
