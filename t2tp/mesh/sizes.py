"""Checks that dimensions of one name have one size."""

import itertools
from collections.abc import Sequence

from t2tp import upstream
from t2tp.mesh.layout_text import describe


def check_consistent_sizes(what: str, tensors: Sequence[upstream.Tensor]) -> None:
    """Checks that tensors agree on the size of each dimension they share.

    Raises:
      ValueError: two tensors disagree; the error names both.
    """
    for a, b in itertools.combinations(tensors, 2):
        names = set(a.shape.dimension_names) & set(b.shape.dimension_names)
        for name in sorted(names - {d.name for d in a.shape.dims if d in b.shape.dims}):
            raise ValueError(
                f"{what}: dimension {name!r} has size {sizes_of(name, a)} in {described(a)} and"
                f" size {sizes_of(name, b)} in {described(b)}. A dimension has one size: make them"
                " agree, or rename one of them (mtf.rename_dimension)."
            )


def sizes_of(name: str, tensor: upstream.Tensor) -> str:
    """Formats the sizes of a tensor's dimensions that have this name."""
    return " and ".join(str(d.size) for d in tensor.shape.dims if d.name == name)


def described(tensor: upstream.Tensor) -> str:
    """Formats a tensor's name and shape."""
    return f"{tensor.name.removesuffix(':0')!r} {describe(tensor.shape)}"
