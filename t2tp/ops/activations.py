"""Activation functions, element-wise."""

from __future__ import annotations

import tensorflow as tf

from t2tp import upstream


def gelu_erf(x: upstream.Tensor, name: str = "gelu_erf") -> upstream.Tensor:
    """Computes `x` times the normal distribution function of `x`, element-wise.

    D. Hendrycks and K. Gimpel (arXiv:1606.08415), section 2. BERT and ViT use this form; GPT-2 and
    `mtf.gelu` use the tanh approximation, which differs by up to 5e-4.
    """
    return upstream.cwise(lambda x: tf.nn.gelu(x, approximate=False), [x], name=name)


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
