"""An einsum that checks the sizes of dimensions. `Program` checks those of other operations.

mesh-tensorflow treats two dimensions of one name and different sizes as different dimensions. An
einsum that was meant to contract the two then sums over each separately, and the result looks
plausible.

One tensor may have two dimensions of one name and different sizes, such as a layer's weights
[channels=3, channels=8]. Two tensors with dimensions of one name must have at least one size of
that name in common.
"""

from collections.abc import Sequence

from t2tp import upstream
from t2tp.mesh.sizes import check_consistent_sizes, described, sizes_of


def einsum(
    xs: Sequence[upstream.Tensor],
    output_shape: upstream.Shape | None = None,
    reduced_dims: Sequence[upstream.Dimension] | None = None,
    name: str | None = None,
) -> upstream.Tensor:
    """Multiplies tensors and sums over the dimensions that `output_shape` lacks.

    Args:
      xs: the tensors.
      output_shape: shape of the result; by default all dimensions except `reduced_dims`.
      reduced_dims: dimensions to sum over; by default the dimensions that `output_shape` lacks, or,
        without `output_shape`, the dimensions in more than one tensor.
      name: operation name.

    Raises:
      ValueError: a dimension has two sizes, or `reduced_dims` contradict `output_shape`.
    """
    check_consistent_sizes("einsum", xs)
    if output_shape is not None:
        output_shape = upstream.convert_to_shape(output_shape)
        _check_known_sizes("output_shape", output_shape.dims, xs)
    _check_known_sizes("reduced_dims", reduced_dims or [], xs)
    return upstream.einsum(list(xs), output_shape, reduced_dims, name)


def _check_known_sizes(
    argument: str, dims: Sequence[upstream.Dimension], tensors: Sequence[upstream.Tensor]
) -> None:
    """Checks that a dimension whose name occurs in `tensors` has its size in one of them."""
    for dim in dims:
        owners = [x for x in tensors if dim.name in x.shape.dimension_names]
        if owners and not any(dim in x.shape.dims for x in owners):
            raise ValueError(
                f"einsum: dimension {dim.name!r} has size {dim.size} in {argument}, and size"
                f" {sizes_of(dim.name, owners[0])} in {described(owners[0])}: make them agree."
            )
