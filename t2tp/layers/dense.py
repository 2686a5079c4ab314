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
    """Computes `x matrix + bias`, with variables of the current scope.

    Args:
      x: [..., inputs].
      to: the dimension of the result.
      name: name of the matrix.
      bias: name of the bias.
      inputs: the dimensions to sum over. Default: the last one.
      gain: factor of the initial values, whose variance is otherwise 1 / inputs.
      is_head: whether the result is scores; see `mtf.Role`.

    Returns:
      [..., to].
    """
    inputs = x.shape.dims[-1:] if inputs is None else inputs
    stddev = gain * mtf.Shape(list(inputs)).size ** -0.5
    shape = mtf.Shape([*(dim for dim in x.shape.dims if dim not in inputs), to])
    return linear(
        x, name, inputs, [to], stddev=stddev, output_shape=shape, bias=bias, is_head=is_head
    )


def square_dense(x: mtf.Tensor) -> mtf.Tensor:
    """Computes a dense layer [..., d] -> [..., d]; a layout that splits d splits the inputs."""
    dim = x.shape.dims[-1]
    y = dense(x, mtf.Dimension(f"{dim.name}_out", dim.size))
    return mtf.rename_dimension(y, y.shape.dims[-1].name, dim.name)
