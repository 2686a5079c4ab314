"""When the weights of a layer are gathered: a bounded number of layers ahead of the computation."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream

if TYPE_CHECKING:
    from t2tp.lowering.lowering import Lowering

# A layer is a variable scope whose name ends with a number, or else the outermost scope.
_LAYER = re.compile(r"^(?:[^/]*/)*?[^/]*\d+(?=/)|^[^/]*")


@dataclass
class _Layer:
    """A run of gathers that belong together.

    Attributes:
      name: of the scope of its variables.
      before: what was computed last before its first gather; None: nothing.
      variables: names of those gathered.
    """

    name: str
    before: tf.Tensor | None
    variables: set[str] = field(default_factory=set)


class GatherSchedule:
    """Follows a lowering through its layers."""

    def __init__(self, prefetch: int) -> None:
        """Begins before the first layer.

        Args:
          prefetch: number of layers that gathers run ahead.
        """
        self._prefetch = prefetch
        self._latest: tf.Tensor | None = None
        self._layers: list[_Layer] = []
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

    def input_of_earlier_layer(self, variable_name: str) -> tf.Tensor | None:
        """Returns what the gather of a variable has to wait for; None: nothing."""
        name = _LAYER.match(variable_name)[0]  # type: ignore[index]
        last = self._layers[-1] if self._layers else None
        if last is None or last.name != name or variable_name in last.variables:
            last = _Layer(name, self._latest)
            self._layers.append(last)
        last.variables.add(variable_name)
        ahead = self._layers[-1 - self._prefetch :][:1]
        before = ahead[0].before if len(self._layers) > self._prefetch else None
        # A tensor of a loop's body cannot be used outside of it.
        graph = tf.compat.v1.get_default_graph()
        return before if before is not None and before.graph is graph else None

    def _is_computed(self, x: upstream.Tensor) -> bool:
        # Inside a loop, its variables are tensors of the loop itself.
        return x in self._computed or isinstance(x.operation, upstream.WhileLoopOperation)
