"""Activation functions, element-wise."""

from collections.abc import Callable
from functools import partial

import tensorflow as tf

from t2tp import upstream


def gelu_erf(x: upstream.Tensor, name: str = "gelu_erf") -> upstream.Tensor:
    """Computes the exact GELU, `x` times the normal distribution function of `x`, element-wise.

    D. Hendrycks and K. Gimpel (arXiv:1606.08415), section 2. BERT and ViT use this form; GPT-2 and
    `mtf.gelu` use the tanh approximation, which differs by up to 5e-4.
    """
    return upstream.cwise(lambda x: tf.nn.gelu(x, approximate=False), [x], name=name)


def relu(x: upstream.Tensor, name: str = "relu") -> upstream.Tensor:
    """Computes `max(x, 0)`, element-wise.

    The gradient takes one pass over memory; mesh-tensorflow's gradient takes three.
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


def clamped_swiglu(gate: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Computes gpt-oss's gated activation, with clamped inputs (arXiv:2508.10925, section 2)."""
    gate, x = tf.minimum(gate, 7.0), tf.clip_by_value(x, -7.0, 7.0)
    return (x + 1.0) * gate * tf.sigmoid(1.702 * gate)


def _gated(activation: Callable[[tf.Tensor], tf.Tensor]) -> Callable[..., tf.Tensor]:
    return lambda gate, x: activation(gate) * x


_gelu = partial(tf.nn.gelu, approximate=True)
# Maps a network's name in `t2tp.choices.MLPS` to its activation, a TensorFlow function. The
# arguments are the output of the gate, if the network has one, and the output of the hidden layer.
MLP_FUNCTIONS: dict[str, Callable[..., tf.Tensor]] = {
    "relu": tf.nn.relu,
    "gelu": _gelu,
    "gelu_erf": partial(tf.nn.gelu, approximate=False),
    "silu": tf.nn.silu,
    "swiglu": _gated(tf.nn.silu),
    "geglu": _gated(_gelu),
    "clamped_swiglu": clamped_swiglu,
}
