"""The dimensions whose name tells the engine something, each declared once.

Most dimensions need no declaration: any rule may split them. Declare a dimension that `exact_sums`
should be able to split, that may be padded, or that the search for layouts should split:

    declare(Declared("d_state", exact=True, model_axis="must"))
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

# The rows of the batch, and the positions of a row.
BATCH, POSITIONS = "batch", "length"
EXPERTS, VOCAB = "experts", "vocab"


@dataclass(frozen=True)
class Declared:
    """A dimension that the engine knows by name.

    Attributes:
      rows: whether the batch is split along it.
      exact: whether `exact_sums` cuts it into parts, so that a layout may split it
        (`t2tp.lowering.exact_sums`). If an operation sums over two such dimensions, the one that
        was declared first is the outer one: within each of its parts, the operation completes the
        sum over the inner dimension.
      padded: whether an axis need not divide it, because the data determine its size. Its slices
        are padded.
      follows: a leader and another dimension. If no rule splits the dimension over an axis of the
        mesh, it inherits the leader's axes, minus the other dimension's axes.
      model_axis: whether tensor parallelism `must` split it (with an axis that divides it), or
        `may` split it. Empty: a search does not split it.
      is_common: whether to suggest it for an axis that splits nothing.
    """

    name: str
    rows: bool = False
    exact: bool = False
    padded: bool = False
    follows: tuple[str, str] | None = None
    model_axis: Literal["", "must", "may"] = ""
    is_common: bool = True


_declared: dict[str, Declared] = {}


def declare(dimension: Declared) -> None:
    """Declares a dimension.

    Raises:
      ValueError: it has been declared with other properties.
    """
    if _declared.setdefault(dimension.name, dimension) != dimension:
        raise ValueError(f"dimension {dimension.name!r} is declared twice, in different ways")


def names_with(has: Callable[[Declared], object]) -> tuple[str, ...]:
    """Returns the names of the dimensions with a property, in the order of their declaration."""
    return tuple(name for name, dimension in _declared.items() if has(dimension))


def declared(name: str) -> Declared:
    """Returns what is declared of a dimension; the defaults if it is not declared."""
    return _declared.get(name) or Declared(name, is_common=False)


# The groups of tokens that are assigned to experts together are rows, too.
declare(Declared(BATCH, rows=True, exact=True))
declare(Declared("expert_groups", rows=True, exact=True, follows=(BATCH, EXPERTS), is_common=False))
declare(Declared("heads", exact=True, model_axis="must"))
declare(Declared("kv_heads", exact=True, model_axis="may", is_common=False))
declare(Declared("d_ff", exact=True, model_axis="must"))
declare(Declared(EXPERTS, exact=True))
declare(Declared(VOCAB, exact=True, padded=True, model_axis="may"))
declare(Declared(POSITIONS))
declare(Declared("expert_length", follows=(POSITIONS, EXPERTS), is_common=False))
for _name in ("d_model", "height", "width", "filters"):
    declare(Declared(_name))
