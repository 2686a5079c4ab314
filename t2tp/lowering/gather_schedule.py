"""When weights are gathered, and which of them together.

In stage 3 the weights of a layer are gathered a bounded number of layers ahead of the computation.
A gather stands in the program where its weight is used. Here it is moved to where the layer
`prefetch` before begins, and then waits for what is computed last before it. TensorFlow runs a
processor's collectives in the order of the program, so that the gather also comes before the
reduce-scatters of the layers in between. In stages 1 and 2 all weights are gathered once, at the
beginning of the step.

Weights that are gathered at the same place are lowered at the same time, so that small ones share a
collective.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import hooks
from t2tp.lowering.reshape import relayout_all
from t2tp.lowering.scatters import DeferredScatter
from t2tp.mesh.zero import Storage

# A layer is a variable scope whose name ends with a number, or else the outermost scope.
_LAYER = re.compile(r"^(?:[^/]*/)*?[^/]*\d+(?=/)|^[^/]*")


def in_groups(
    operations: Sequence[upstream.Operation], storage: Storage
) -> list[list[upstream.Operation]]:
    """Returns the operations in the order to lower them, those to be lowered at once in one group.

    A group of several consists of gathers of weights.

    Args:
      operations: in the order of the program.
      storage: how variables are sharded at rest.
    """
    if storage.stage == 3:
        return _gathered_ahead(operations, storage.prefetch)
    gathers = [op for op in operations if hooks(op).gathered_variable is not None]
    if not gathers:
        return [[op] for op in operations]
    inside = set(gathers)
    return [
        gathers if op is gathers[0] else [op]
        for op in operations
        if op is gathers[0] or op not in inside
    ]


def _gathered_ahead(
    operations: Sequence[upstream.Operation], prefetch: int
) -> list[list[upstream.Operation]]:
    """Moves gathers of weights ahead of the layers that use them."""
    begins: list[int] = []  # Where the first gather of each layer stands.
    # By where they are moved: the variables, and the gathers of each layer.
    variables: dict[int, list[upstream.Operation]] = defaultdict(list)
    gathers: dict[int, dict[int, list[upstream.Operation]]] = defaultdict(lambda: defaultdict(list))
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
        place = begins[max(len(begins) - 1 - prefetch, 0)]
        # What it gathers may be created where it is used.
        variables[place].append(op.inputs[0].operation)
        gathers[place][len(begins)].append(op)
    inside, done = set(operations), set[upstream.Operation]()
    groups: list[list[upstream.Operation]] = []
    for number, op in enumerate(operations):
        created = [[variable] for variable in variables[number] if variable in inside]
        for group in (*created, *gathers[number].values(), [op]):
            # An operation is not in two groups of several.
            if group[0] not in done:
                groups.append(group)
                done.update(group)
    return groups


def lower_gathers(operations: Sequence[upstream.Operation], lowering: Lowering) -> None:
    """Lowers gathers of weights at once."""
    wanted = [hooks(op).to_gather(lowering) for op in operations]
    mesh_impl = lowering.mesh_impl(operations[0])
    for op, whole in zip(operations, relayout_all(mesh_impl, wanted), strict=True):
        lowering.set_slice(op.outputs[0], whole)


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
        # A deferred reduce-scatter is not to be executed for this.
        known = [
            x
            for x in op.outputs
            if x in lowering.tensors and not isinstance(lowering.tensors[x], DeferredScatter)
        ]
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
