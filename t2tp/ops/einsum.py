"""Products and sums of tensors whose dimensions must agree in size.

mesh-tensorflow takes dimensions of one name and two sizes for two dimensions. A product that should
sum over one of them then sums over each, and gives numbers that look right. (One tensor may have
both sizes, such as the weights [channels=3, channels=8] of a layer; of two tensors that have the
name, one size at least must be in both.)
"""

from __future__ import annotations

from collections.abc import Sequence

from t2tp import upstream as mtf
from t2tp.mesh.sizes import described, refuse_two_sizes, sizes_of


def einsum(
    xs: Sequence[mtf.Tensor],
    output_shape: mtf.Shape | None = None,
    reduced_dims: Sequence[mtf.Dimension] | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """The product of tensors, element by element, summed over what `output_shape` lacks.

    Args:
      xs: the tensors.
      output_shape: of the result; by default all dimensions but the `reduced_dims`.
      reduced_dims: what to sum over; by default what is in several tensors.
      name: of the operation.

    Raises:
      ValueError: a dimension has two sizes, or `reduced_dims` contradict `output_shape`.
    """
    tensors = _tensors(xs)
    refuse_two_sizes("einsum", tensors)
    if output_shape is not None:
        output_shape = mtf.convert_to_shape(output_shape)
        _refuse_strange_sizes("output_shape", output_shape.dims, tensors)
    _refuse_strange_sizes("reduced_dims", reduced_dims or [], tensors)
    return mtf.einsum(list(xs), output_shape, reduced_dims, name)


def matmul(
    a: mtf.Tensor,
    b: mtf.Tensor,
    output_shape: mtf.Shape | None = None,
    reduced_dims: Sequence[mtf.Dimension] | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """`einsum([a, b], ...)`."""
    return einsum([a, b], output_shape, reduced_dims, name)


def add(
    x1: mtf.Tensor,
    x2: mtf.Tensor | float,
    output_shape: mtf.Shape | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """`x1 + x2`, broadcast to the dimensions of both.

    Raises:
      ValueError: a dimension has two sizes.
    """
    refuse_two_sizes("add", _tensors((x1, x2)))
    return mtf.add(x1, x2, output_shape, name)


def multiply(
    x1: mtf.Tensor,
    x2: mtf.Tensor | float,
    output_shape: mtf.Shape | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """`x1 * x2`, broadcast to the dimensions of both.

    Raises:
      ValueError: a dimension has two sizes.
    """
    refuse_two_sizes("multiply", _tensors((x1, x2)))
    return mtf.multiply(x1, x2, output_shape, name)


def _tensors(xs: Sequence[mtf.Tensor | float]) -> list[mtf.Tensor]:
    return [x for x in xs if isinstance(x, mtf.Tensor)]


def _refuse_strange_sizes(
    argument: str, dims: Sequence[mtf.Dimension], tensors: Sequence[mtf.Tensor]
) -> None:
    """Refuses a dimension of an argument that tensors have, but in other sizes."""
    for dim in dims:
        owners = [x for x in tensors if dim.name in x.shape.dimension_names]
        if owners and not any(dim in x.shape.dims for x in owners):
            raise ValueError(
                f"einsum: dimension {dim.name!r} has size {dim.size} in {argument}, and size"
                f" {sizes_of(dim.name, owners[0])} in {described(owners[0])}: make them agree."
            )
