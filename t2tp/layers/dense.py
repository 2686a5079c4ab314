"""A dense layer: a matrix and a bias, without adapters."""

from collections.abc import Sequence

from t2tp import mtf
from t2tp.layers.linear import linear


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
