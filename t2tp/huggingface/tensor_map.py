"""Tables that map Hugging Face's tensors ("theirs") to our variables, in named dimensions.

```python
TensorRow("h.{layer}.attn.c_attn.weight", "d_model (part heads d_kv)",
      ("layer_{layer}/attention/q", ...), "d_model heads d_kv")
```

This entry maps GPT-2's matrix [768, 2304] to our three variables [768, 12, 64]. The matrix's second
dimension merges `part`, `heads` and `d_kv`, where `part` is the index of our variable. The last
string gives the order of our dimensions. `{layer}` stands for the index of a layer, and `{expert}`
for the index of an expert, if their model has a tensor per expert. Our variable has all experts in
its first dimension. A sum such as `(heads d_kv + kv_heads d_kv)` means that the tensor's rows are
the rows of several variables, one after another. Each of these variables has a separate entry,
whose `term` is the variable's index in the sum.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

_PART = "part"

# Max elements of a slice that is read or written at once; 32 MiB in float32.
MOST_ELEMENTS = 1 << 23

Index = tuple[int, ...]


@dataclass(frozen=True)
class TensorRow:
    """Maps a tensor of theirs, or a tensor for each layer or expert, to our variables.

    Attributes:
      theirs: the tensor's name.
      their_dims: its dimensions, as in "(heads d_kv) d_model"; "1" is a dimension of size 1.
      ours: our variable's name, or several if `part` splits the tensor.
      our_dims: the dimensions of each of our variables.
      layers: the key in `sizes` (see `variables`) that has the number of layers.
      is_copy: whether another entry has the same values, so that reading skips this one.
      term: index of our variable's term, if their first dimension is a sum.
    """

    theirs: str
    their_dims: str
    ours: str | tuple[str, ...]
    our_dims: str
    layers: str = "layer"
    is_copy: bool = False
    term: int = 0


def dense(
    theirs: str, ours: str, into: str, out: str, *, bias: bool = True, is_in_out: bool = False
) -> list[TensorRow]:
    """Returns the entries of their module's matrix and bias.

    `into` and `out` are our dimensions of inputs and outputs, as in "heads d_kv". Their matrix is
    [out, in], or with `is_in_out` [in, out].
    """
    their_dims = f"({into}) ({out})" if is_in_out else f"({out}) ({into})"
    found = [TensorRow(f"{theirs}.weight", their_dims, ours, f"{into} {out}")]
    return [*found, TensorRow(f"{theirs}.bias", f"({out})", f"{ours}_bias", out)] if bias else found


def layer_norm(theirs: str, ours: str, dim: str = "d_model") -> list[TensorRow]:
    """Returns the entries of a layer norm."""
    return [
        TensorRow(f"{theirs}.weight", dim, f"{ours}/norm_scale", dim),
        TensorRow(f"{theirs}.bias", dim, f"{ours}/norm_bias", dim),
    ]


@dataclass(frozen=True)
class TensorPiece:
    """Maps one of their tensors, or a part of it, to a part of our variable.

    Attributes:
      theirs: the tensor's name.
      shape: the tensor's shape.
      rows: begin and end of our variable along the tensor's first dimension.
      sizes: the sizes of the dimensions of these rows, after merged dimensions have been separated.
      order: the permutation that puts the separated dimensions in our order.
      part: the index along `part`, the first of the permuted dimensions; None: there are no parts.
      expert: the index along our variable's first dimension; None: the piece is the full variable.
      is_copy: whether another piece has the same values, so that reading skips this one.
    """

    theirs: str
    shape: tuple[int, ...]
    rows: tuple[int, int]
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    part: int | None
    expert: int | None
    is_copy: bool = False

    def view(self, tensor: np.ndarray) -> np.ndarray:
        """Returns a view of their tensor with our variable's dimensions."""
        ordered = tensor[slice(*self.rows)].reshape(self.sizes).transpose(self.order)
        view = ordered if self.part is None else ordered[self.part]
        return view if self.expert is None else view[None]


@dataclass(frozen=True)
class Variable:
    """One of our variables; `pieces` are the tensors with its values, including copies."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    pieces: tuple[TensorPiece, ...]

    @property
    def read_pieces(self) -> tuple[TensorPiece, ...]:
        """The pieces that are not copies."""
        return tuple(each for each in self.pieces if not each.is_copy)

    def boxes(self, piece: TensorPiece, most_elements: int) -> Iterator[tuple[Index, Index]]:
        """Divides a piece into boxes of at most `most_elements`, in row-major order.

        Yields the begin and the size of each box along all dimensions of the variable.
        """
        of_piece = self.shape if piece.expert is None else (1, *self.shape[1:])
        for begin, size in _boxes(of_piece, most_elements):
            yield (begin if piece.expert is None else (piece.expert, *begin[1:])), size


def variables(entries: Iterable[TensorRow], sizes: Mapping[str, int]) -> list[Variable]:
    """Returns our variables, in the order of the table `entries`.

    `sizes` has the sizes of dimensions, and the numbers of layers and experts.
    """
    found: dict[str, Variable] = {}
    for entry in entries:
        for numbers in _numbers(entry, sizes):
            for name, dims, piece in _pieces(entry, numbers, sizes):
                shape = tuple(sizes[dim] for dim in dims)
                before = found[name].pieces if name in found else ()
                found[name] = Variable(name, dims, shape, (*before, piece))
    return list(found.values())


def _boxes(shape: Index, most_elements: int) -> Iterator[tuple[Index, Index]]:
    """Divides a tensor into boxes of at most `most_elements`; yields their begins and sizes."""
    most = [most_elements // max(1, math.prod(shape[at:])) for at in range(1, len(shape) + 1)]
    steps = [max(1, min(pair)) for pair in zip(shape, most, strict=True)]
    begins = (range(0, max(1, size), step) for size, step in zip(shape, steps, strict=True))
    for begin in itertools.product(*begins):
        yield begin, tuple(map(min, steps, np.subtract(shape, begin).tolist()))


def _numbers(entry: TensorRow, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yields a layer's and an expert's index for each tensor of an entry."""
    layers = sizes[entry.layers] if "{layer}" in entry.theirs else 1
    experts = sizes["expert"] if "{expert}" in entry.theirs else 1
    for layer, expert in itertools.product(range(layers), range(experts)):
        yield {"layer": layer, "expert": expert}


def _pieces(
    entry: TensorRow, numbers: Mapping[str, int], sizes: Mapping[str, int]
) -> Iterator[tuple[str, tuple[str, ...], TensorPiece]]:
    """Yields name, dimensions and piece of each of our variables in an entry."""
    ours = (entry.ours,) if isinstance(entry.ours, str) else entry.ours
    has_parts = re.search(rf"\b{_PART}\b", entry.their_dims) is not None
    known = {**sizes, _PART: len(ours), "1": 1}
    first, *others = re.findall(r"\([^)]*\)|[^\s()]+", entry.their_dims)
    terms = [term.split() for term in first.strip("()").split("+")]
    groups = [terms[entry.term], *(group.strip("()").split() for group in others)]
    heights = [math.prod(known[dim] for dim in term) for term in terms]
    begin = sum(heights[: entry.term])
    flat = [dim for group in groups for dim in group]
    of_all_experts = "{expert}" in entry.theirs
    dims = tuple(entry.our_dims.split())
    own = dims[1:] if of_all_experts else dims
    # Hugging Face's tensors may have dimensions of size 1, which our variables lack.
    kept = [dim for dim in flat if dim != "1"]
    order = [kept.index(dim) for dim in ((_PART, *own) if has_parts else own)]
    for part, name in enumerate(ours):
        yield (
            name.format(layer=f"{numbers['layer']:02d}"),
            dims,
            TensorPiece(
                entry.theirs.format(**numbers),
                (sum(heights), *(math.prod(known[dim] for dim in g) for g in groups[1:])),
                (begin, begin + heights[entry.term]),
                tuple(known[dim] for dim in kept),
                tuple(order),
                part if has_parts else None,
                numbers["expert"] if of_all_experts else None,
                entry.is_copy,
            ),
        )
