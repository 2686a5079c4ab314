"""Linear maps, which may have an adapter, and dense layers, which have none."""

import math
from collections.abc import Sequence
from functools import partial

from t2tp import mtf
from t2tp.building.adapters import DOWN, UP
from t2tp.building.mesh import context_of
from t2tp.layers import variables
from t2tp.layers.dropout import Dropout


def linear(
    x: mtf.Tensor,
    name: str,
    inputs: Sequence[mtf.Dimension],
    outputs: Sequence[mtf.Dimension],
    *,
    stddev: float,
    output_shape: mtf.Shape,
    target: str = "",
    bias: str = "",
    experts: Sequence[mtf.Dimension] = (),
    is_head: bool = False,
) -> mtf.Tensor:
    """Computes `x W`, plus `scale * (x A) B` if W has an adapter, plus a bias.

    W is the variable `name`. The adapter computes `x A` [..., rank] first, which needs only
    `rank * (in + out)` multiplications per token. Adding A B to W instead would require a gradient
    of W's size in the backward pass.

    Args:
      x: [..., inputs].
      name: name of the variable [experts, inputs, outputs], in the current scope.
      inputs: dimensions to sum over.
      outputs: new dimensions.
      stddev: standard deviation of the initial values.
      output_shape: shape of the result.
      target: kind of the weight, one of `t2tp.choices.ADAPTED`. Empty: it never has an adapter.
      bias: name of the bias [experts, outputs]. Empty: no bias.
      experts: dimensions of `x` along which each index has its own weights.
      is_head: whether the outputs are scores; see `mtf.Role`.
    """
    matrix = variables.matrix(
        x.mesh, name, inputs, outputs, stddev, x.dtype, experts=experts, is_head=is_head
    )
    y = mtf.einsum([x, matrix], output_shape=output_shape)
    adapters = context_of(x.mesh).adapters
    if adapters is not None and target in adapters.targets:
        rank = mtf.Dimension("lora_rank", adapters.rank)
        # PEFT initializes adapters like PyTorch's linear layers, with the variance 1 / (3 in).
        spread = (3 * math.prod(dim.size for dim in inputs)) ** -0.5
        make = partial(variables.matrix, dtype=x.dtype, experts=experts, is_adapter=True)
        down = make(x.mesh, f"{name}{DOWN}", inputs, [rank], spread)
        up = make(x.mesh, f"{name}{UP}", [rank], outputs, 0.0)
        batch = [dim for dim in x.shape.dims if dim not in inputs]
        # The rate is 0 except in training; see `Model.building`.
        dropped = Dropout(adapters.dropout)(x, training=True)
        low = mtf.einsum([dropped, down], output_shape=mtf.Shape([*batch, rank])) * adapters.scale
        y += mtf.einsum([low, up], output_shape=output_shape)
    if bias:
        added = variables.bias(x.mesh, bias, outputs, x.dtype, experts=experts)
        y = mtf.add(y, added, output_shape=output_shape)
    return y


def dense(
    x: mtf.Tensor,
    to: mtf.Dimension,
    name: str = "kernel",
    bias: str = "bias",
    *,
    inputs: Sequence[mtf.Dimension] | None = None,
    gain: float = 1.0,
    is_head: bool = False,
) -> mtf.Tensor:
    """Computes `x matrix + bias` with variables in the current scope.

    By default the last dimension is summed over. `gain` is a factor of the initial standard
    deviation inputs ** -0.5. For `is_head` see `mtf.Role`.
    """
    inputs = x.shape.dims[-1:] if inputs is None else inputs
    stddev = gain * mtf.Shape(list(inputs)).size ** -0.5
    shape = mtf.Shape([*(dim for dim in x.shape.dims if dim not in inputs), to])
    return linear(
        x, name, inputs, [to], stddev=stddev, output_shape=shape, bias=bias, is_head=is_head
    )


def square_dense(x: mtf.Tensor) -> mtf.Tensor:
    """Applies a dense layer [..., d] -> [..., d]. If d is split, the matrix is split by rows."""
    dim = x.shape.dims[-1]
    y = dense(x, mtf.Dimension(f"{dim.name}_out", dim.size))
    return mtf.rename_dimension(y, y.shape.dims[-1].name, dim.name)
