"""Gradients of functions that mesh-tensorflow differentiates with TensorFlow, and of pooling."""

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering


def lower_generic_gradient(op: upstream.GenericGradOperation, lowering: Lowering) -> None:
    """Computes the gradient of a TensorFlow function, slice by slice.

    The results are partial derivatives. If one input is computed from another, the mtf graph adds
    the gradient through that dependency.
    """
    forward = op._forward_op
    ys = [lowering.slice(y) for y in forward.outputs]
    grad_ys = [lowering.slice(dy) for dy in op._grad_ys]
    xs = list(dict.fromkeys(forward.inputs))
    tf_xs = [lowering.slice(x) for x in xs]
    zero = tf.UnconnectedGradients.ZERO
    gradients = tf.gradients(ys, tf_xs, grad_ys, stop_gradients=tf_xs, unconnected_gradients=zero)
    grads = dict(zip(xs, gradients, strict=True))
    for x, output in zip(forward.inputs, op.outputs, strict=True):
        # If an input occurs twice, its first occurrence gets the full derivative, the second 0.
        grad = grads.pop(x, None)
        lowering.set_slice(output, tf.zeros_like(lowering.slice(x)) if grad is None else grad)


def lower_pool_gradient(op: upstream.PoolBackPropOperation, lowering: Lowering) -> None:
    """Computes the gradient of pooling; tied maxima of a window share the window's gradient."""
    if not op._pool_fn_string.startswith("MAX"):
        op.lower(lowering)
        return
    x, y, dy = (lowering.slice(tensor) for tensor in op.inputs)
    first = -1 - len(op._ksize)

    def to_windows(pooled: tf.Tensor) -> tf.Tensor:
        return upstream.ops._tf_upscale(pooled, first, -1, op._strides)

    ties = tf.cast(tf.equal(x, to_windows(y)), dy.dtype)
    average = upstream.ops.pool_fn(op._pool_fn_string.replace("MAX", "AVG"))
    num_ties = average(ties, op._ksize, op._strides, "VALID") * float(
        upstream.ops.list_product(op._ksize)
    )
    lowering.set_slice(op.outputs[0], ties * to_windows(dy / num_ties))
