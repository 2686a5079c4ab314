"""Slicing along one dimension."""

from t2tp import upstream


def mtf_slice(
    x: upstream.Tensor, begin: int, size: int, slice_dim_name: str, name: str | None = None
) -> upstream.Tensor:
    """Returns `size` elements of `x` from `begin` on, along a dimension that no layout may split.

    Raises:
      ValueError: `x` has no such dimension, or the range is out of bounds.
    """
    if slice_dim_name not in x.shape.dimension_names:
        raise ValueError(f"slice: {x.name!r} {x.shape} has no dimension {slice_dim_name!r}.")
    available = x.shape.get_dim_by_name(slice_dim_name).size
    if begin < 0 or size < 0 or begin + size > available:
        raise ValueError(
            f"slice: elements {begin} to {begin + size} of {slice_dim_name!r}, which has"
            f" {available} in {x.name!r}: the range must lie within 0 to {available}."
        )
    return upstream.slice(x, begin, size, slice_dim_name, name)
