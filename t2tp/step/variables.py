"""The variables of a program: which of them are slots of an optimizer, and their bytes."""

import math
import re
from collections import Counter
from collections.abc import Container, Sequence

from t2tp import upstream
from t2tp.mesh.layer_names import layer_of
from t2tp.mesh.layout import Layout
from t2tp.mesh.storage import name_in_use

# A slot's name consists of its variable's name, one of these suffixes, and the kind of slot.
_SLOT_SUFFIXES = ("/", "_slot_", "_momentum_")


def owner_of(slot: str, variables: Container[str]) -> str | None:
    """Returns the variable to which a slot belongs by its name; None if it is not a slot."""
    ends = (
        match.start() for suffix in _SLOT_SUFFIXES for match in re.finditer(f"(?={suffix})", slot)
    )
    return max((slot[:end] for end in ends if slot[:end] in variables), key=len, default=None)


def bytes_by_purpose(
    graph: upstream.Graph, layout: Layout, unused: Sequence[upstream.Variable] = ()
) -> Counter[str]:
    """Returns the bytes of a processor's `weights` and `optimizer` state.

    `unused` are trainable variables that this processor does not have; it lacks their slots, too.
    """
    held: Counter[str] = Counter()
    trained = {variable.name for variable in graph.trainable_variables}
    without = {variable.name for variable in unused}
    for variable in graph.all_variables:
        owner = None if variable.trainable else owner_of(variable.name, trained)
        if without.isdisjoint({variable.name, owner}):
            # A variable's shape is its shape at rest, as ZeRO shards it.
            size = math.prod(layout.slice_size(variable.shape)) * variable.slice_dtype.size
            held["weights" if owner is None else "optimizer"] += size
    return held


def elements_in_use(variable: upstream.Variable, layout: Layout) -> int:
    """Returns the number of a variable's elements that a processor uses."""
    dims = [upstream.Dimension(name_in_use(dim.name), dim.size) for dim in variable.shape.dims]
    return math.prod(layout.slice_size(upstream.Shape(dims)))


def largest_layer(graph: upstream.Graph, layout: Layout) -> int:
    """Returns the number of weights of the largest layer that a processor uses; 0: no layers."""
    sizes: Counter[str] = Counter()
    for variable in graph.trainable_variables:
        sizes[layer_of(variable.name)] += elements_in_use(variable, layout)
    del sizes[""]  # Variables outside of layers.
    return max(sizes.values(), default=0)
