"""Dimensions of one name that should have one size."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from t2tp import upstream as mtf
from t2tp.mesh.layout import describe


def refuse_two_sizes(what: str, tensors: Sequence[mtf.Tensor]) -> None:
    """Refuses two tensors that have a dimension of one name, and no size of it in common.

    Raises:
      ValueError: names both tensors.
    """
    for a, b in itertools.combinations(tensors, 2):
        names = set(a.shape.dimension_names) & set(b.shape.dimension_names)
        for name in sorted(names - {d.name for d in a.shape.dims if d in b.shape.dims}):
            raise ValueError(
                f"{what}: dimension {name!r} has size {sizes_of(name, a)} in {described(a)} and"
                f" size {sizes_of(name, b)} in {described(b)}. A dimension has one size: make them"
                " agree, or rename one of them (mtf.rename_dimension)."
            )


def sizes_of(name: str, tensor: mtf.Tensor) -> str:
    """The sizes that a tensor has of dimensions of a name, for people."""
    return " and ".join(str(d.size) for d in tensor.shape.dims if d.name == name)


def described(tensor: mtf.Tensor) -> str:
    """A tensor's name and shape, for people."""
    return f"{tensor.name.removesuffix(':0')!r} {describe(tensor.shape)}"
