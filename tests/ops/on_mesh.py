"""Runs an operation and its gradients on a mesh, and a reference in float64 on one device."""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

import t2tp
from t2tp import mtf

# Name -> (shape in words, array). Integers are fed as int32; floats get gradients.
Inputs = Mapping[str, tuple[str, np.ndarray]]


def normal(shape: str, scale: float = 1.0, seed: int = 0) -> tuple[str, np.ndarray]:
    """Returns a shape in words, and normally distributed numbers of that shape."""
    sizes = mtf.convert_to_shape(shape).to_integer_list
    return shape, scale * np.random.default_rng(seed).normal(size=sizes)


def with_gradients(
    op: Callable[..., mtf.Tensor],
    inputs: Inputs,
    mesh_shape: str = "",
    layout: str = "",
    dtype: tf.DType = tf.float32,
    xla: bool | None = None,
    program_type: type[t2tp.Program] = t2tp.Program,
    seed: int = 0,
    step_number: int = 0,
) -> dict[str, np.ndarray]:
    """Returns `op(**inputs)` as `y`, and the gradients of `sum(y * weights)` as `d_<input>`."""
    learned = [name for name, (_, array) in inputs.items() if _is_float(array)]
    features = {
        name: t2tp.Feature(shape, dtype if name in learned else tf.int32)
        for name, (shape, _) in inputs.items()
    }

    def step(mesh, given):
        y = op(**given)
        weights = mtf.import_tf_tensor(y.mesh, _weights(y.shape.to_integer_list), shape=y.shape)
        wide = dtype if dtype == tf.float64 else tf.float32
        loss = mtf.reduce_sum(mtf.cast(y, wide) * mtf.cast(weights, wide))
        grads = mtf.gradients([loss], [given[name] for name in learned])
        return {"y": y} | {f"d_{name}": d for name, d in zip(learned, grads, strict=True)}

    where = {"mesh_shape": mesh_shape, "layout": layout}
    program = program_type(step, features, **where, xla=xla, seed=seed)
    outputs = program({name: array for name, (_, array) in inputs.items()}, step_number)
    return {name: np.asarray(outputs[name], np.float64) for name in outputs}


def in_float64(op, inputs, dtype=tf.float32):
    """Returns `y` and the gradients for an operation on TensorFlow's tensors, in float64.

    The inputs are rounded to `dtype` first.
    """
    given = {name: _rounded(array, dtype) for name, (_, array) in inputs.items()}
    learned = [name for name, tensor in given.items() if tensor.dtype == tf.float64]
    with tf.GradientTape() as tape:
        tape.watch([given[name] for name in learned])
        y = op(**given)
        loss = tf.reduce_sum(y * _weights(y.shape.as_list()))
    grads = tape.gradient(loss, [given[name] for name in learned])
    values = {"y": y} | {f"d_{name}": d for name, d in zip(learned, grads, strict=True)}
    return {name: tf.convert_to_tensor(value).numpy() for name, value in values.items()}


def assert_close(ours, wanted, tolerance):
    """Checks that differences are at most `tolerance` of each tensor's largest element.

    Rounding to float32 changes a number by up to 6e-8 of its value, rounding to bfloat16 by 2**-8.
    """
    assert set(ours) == set(wanted)
    for name, value in wanted.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(
            ours[name], value, rtol=0, atol=tolerance * scale, err_msg=name, strict=True
        )


def _is_float(array: np.ndarray) -> bool:
    return np.issubdtype(array.dtype, np.floating)


def _rounded(array: np.ndarray, dtype: tf.DType) -> tf.Tensor:
    if not _is_float(array):
        return tf.constant(array, tf.int32)
    return tf.cast(tf.cast(tf.constant(array), dtype), tf.float64)


def _weights(shape: list[int]) -> np.ndarray:
    """Returns weights that differ and are not near 0, so that any wrong gradient is noticed."""
    return 1.5 + np.sin(np.arange(np.prod(shape, dtype=int), dtype=np.float64)).reshape(shape)
