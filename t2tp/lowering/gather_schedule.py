"""When the weights of a layer are gathered: a bounded number of layers ahead of the computation.

A gather stands in the program where its weight is used. Here it is moved to where the layer
`prefetch` before begins, and then waits for what is computed last before it. TensorFlow runs a
processor's collectives in the order of the program, so that the gather also comes before the
reduce-scatters of the layers in between.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.operation import hooks

if TYPE_CHECKING:
    from t2tp.lowering.lowering import Lowering

# A layer is a variable scope whose name ends with a number, or else the outermost scope.
_LAYER = re.compile(r"^(?:[^/]*/)*?[^/]*\d+(?=/)|^[^/]*")


def gathered_ahead(
    operations: Sequence[upstream.Operation], prefetch: int
) -> list[upstream.Operation]:
    """Moves gathers of weights ahead of the layers that use them.

    Args:
      operations: in the order of the program.
      prefetch: number of layers that gathers run ahead.
    """
    begins: list[int] = []  # Where the first gather of each layer stands.
    moved: dict[int, list[upstream.Operation]] = defaultdict(list)
    name, seen = "", set[str]()
    for number, op in enumerate(operations):
        variable = hooks(op).gathered_variable
        if variable is None:
            continue
        layer = _LAYER.match(variable)[0]  # type: ignore[index]
        if not begins or layer != name or variable in seen:
            begins.append(number)
            name, seen = layer, set()
        seen.add(variable)
        # What it gathers may be created where it is used.
        moved[begins[max(len(begins) - 1 - prefetch, 0)]] += [op.inputs[0].operation, op]
    inside = set(operations)
    ordered: dict[upstream.Operation, None] = {}
    for number, op in enumerate(operations):
        ordered |= dict.fromkeys(gather for gather in moved[number] if gather in inside)
        ordered |= {op: None}
    return list(ordered)


class Latest:
    """What was computed last, from the features of a program, in the order of its lowering."""

    def __init__(self) -> None:
        """Begins before all operations."""
        self._latest: tf.Tensor | None = None
        self._computed: set[upstream.Tensor] = set()

    def note(self, op: upstream.Operation, lowering: Lowering) -> None:
        """Notes that an operation was lowered: whether its results depend on the features."""
        is_feature = isinstance(op, upstream.ImportLaidOutTensorOperation)
        if not is_feature and not any(self._is_computed(x) for x in op.inputs):
            return
        self._computed.update(op.outputs)
        known = [x for x in op.outputs if x in lowering.tensors]
        if known and not is_feature:
            self._latest, _ = lowering.partial_sum(known[0])

    def value(self) -> tf.Tensor | None:
        """Returns it, or this processor's partial sum of it; None: nothing was computed here."""
        # A tensor of a loop's body cannot be used outside of it.
        graph = tf.compat.v1.get_default_graph()
        return self._latest if self._latest is not None and self._latest.graph is graph else None

    def _is_computed(self, x: upstream.Tensor) -> bool:
        # Inside a loop, its variables are tensors of the loop itself.
        return x in self._computed or isinstance(x.operation, upstream.WhileLoopOperation)
