"""A linear map, to which an adapter may be added."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from t2tp import mtf
from t2tp.layers import variables
from t2tp.layers.adapters import DOWN, UP, of_mesh
from t2tp.layers.dropout import Dropout


def linear(
    x: mtf.Tensor,
    name: str,
    reduced: Sequence[mtf.Dimension],
    made: Sequence[mtf.Dimension],
    *,
    stddev: float,
    output_shape: mtf.Shape,
    target: str,
    experts: Sequence[mtf.Dimension] = (),
) -> mtf.Tensor:
    """Multiplies by the variable `name`, and adds the product with its adapter if it has one.

    The product with A is computed first, [..., rank]: that takes `rank * (in + out)` multiplies
    a token, and the backward pass needs no gradient of the size of the weight, which it would if
    A B were added to the weight.

    Args:
      x: [..., reduced].
      name: name of the variable [experts, reduced, made], in the current scope.
      reduced: dimensions of `x` that are summed over.
      made: dimensions of the result that `x` does not have.
      stddev: standard deviation of the initial values.
      output_shape: shape of the result.
      target: the kind of weight, of those in `t2tp.choices.ADAPTED`.
      experts: dimensions of `x` along which each index has its own weights.

    Returns:
      a tensor of `output_shape`.
    """
    matrix = variables.matrix(x.mesh, name, reduced, made, stddev, x.dtype, experts=experts)
    y = mtf.einsum([x, matrix], output_shape=output_shape)
    adapters = of_mesh(x.mesh)
    if adapters is None or target not in adapters.targets:
        return y
    rank = mtf.Dimension("lora_rank", adapters.rank)
    # The variance of PyTorch's linear layers, 1 / (3 in), which PEFT's adapters begin with.
    spread = (3 * math.prod(dim.size for dim in reduced)) ** -0.5
    make = partial(variables.matrix, dtype=x.dtype, experts=experts, is_adapter=True)
    down = make(x.mesh, f"{name}{DOWN}", reduced, [rank], spread)
    up = make(x.mesh, f"{name}{UP}", [rank], made, 0.0)
    kept = [dim for dim in x.shape.dims if dim not in reduced]
    dropped = Dropout(adapters.dropout)(x, training=True)  # 0 where nothing is trained.
    low = mtf.einsum([dropped, down], output_shape=mtf.Shape([*kept, rank])) * adapters.scale
    return y + mtf.einsum([low, up], output_shape=output_shape)
