"""The rectified linear unit, whose gradient is one pass over the activations."""

from __future__ import annotations

import tensorflow as tf

from t2tp import upstream


def relu(x: upstream.Tensor, name: str = "relu") -> upstream.Tensor:
    """Computes `max(x, 0)`, element-wise.

    mesh-tensorflow's gradient compares, casts and multiplies: three passes.
    """
    return upstream.cwise(tf.nn.relu, [x], name=name, grad_function=_gradient)


def _gradient(op: upstream.Operation, dy: upstream.Tensor) -> list[upstream.Tensor]:
    return [_relu_grad(dy, op.outputs[0])]


def _relu_grad(dy: upstream.Tensor, y: upstream.Tensor) -> upstream.Tensor:
    """Outputs `dy` where `y` is above 0, and 0 elsewhere."""
    return upstream.cwise(
        lambda dy, y: tf.raw_ops.ReluGrad(gradients=dy, features=y),
        [dy, y],
        name="relu_grad",
        grad_function=lambda op, d: [_relu_grad(d, op.inputs[1]), None],
    )
