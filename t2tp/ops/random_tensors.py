"""Random tensors that `recompute_grad` regenerates instead of storing them."""

from collections.abc import Callable

import tensorflow.compat.v1 as tf1

from t2tp import upstream
from t2tp.lowering.operation import Operation


class RandomOperation(Operation, upstream.RandomOperation):
    """Outputs a random tensor that does not depend on the mesh."""


def random_uniform(mesh: upstream.Mesh, shape: upstream.Shape, **kwargs: object) -> upstream.Tensor:
    """Returns uniform random numbers.

    `kwargs` are arguments of `tf.random.uniform`: `minval` (0), `maxval` (1), `dtype`, `name`.
    """
    return _random(mesh, shape, tf1.random.uniform, kwargs)


def random_normal(mesh: upstream.Mesh, shape: upstream.Shape, **kwargs: object) -> upstream.Tensor:
    """Returns normal random numbers.

    `kwargs` are arguments of `tf.random.normal`: `mean` (0), `stddev` (1), `dtype`, `name`.
    """
    return _random(mesh, shape, tf1.random.normal, kwargs)


def _random(
    mesh: upstream.Mesh, shape: upstream.Shape, tf_fn: Callable, kwargs: dict[str, object]
) -> upstream.Tensor:
    return RandomOperation(mesh, upstream.convert_to_shape(shape), tf_fn, **kwargs).outputs[0]
