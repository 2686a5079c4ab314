"""The rectifier, with the gradient of one pass over the activations that TensorFlow has."""

from __future__ import annotations

import tensorflow as tf

from t2tp import upstream as mtf


def relu(x: mtf.Tensor, name: str = "relu") -> mtf.Tensor:
    """The larger of `x` and 0, element by element.

    mesh-tensorflow compares, casts and multiplies for the gradient: three passes.
    """
    return mtf.cwise(tf.nn.relu, [x], name=name, grad_function=_gradient)


def _gradient(op: mtf.Operation, dy: mtf.Tensor) -> list[mtf.Tensor]:
    return [_relu_grad(dy, op.outputs[0])]


def _relu_grad(dy: mtf.Tensor, y: mtf.Tensor) -> mtf.Tensor:
    """`dy` where `y` is above 0, and 0 elsewhere."""
    return mtf.cwise(
        lambda dy, y: tf.raw_ops.ReluGrad(gradients=dy, features=y),
        [dy, y],
        name="relu_grad",
        grad_function=lambda op, d: [_relu_grad(d, op.inputs[1]), None],
    )
