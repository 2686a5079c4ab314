"""Schedules the all-gathers of ZeRO-sharded weights.

At stage 3 the weights of a layer are all-gathered for that layer alone. Issued where the weights
are used, the all-gather would stall the layer, so it is issued `prefetch` layers earlier:

    prefetch=0    gather0  layer0  gather1  layer1  gather2  layer2
    prefetch=1    gather0  gather1  layer0  gather2  layer1  layer2

TensorFlow runs a device's collectives in trace order. In the backward pass, an early all-gather
therefore also runs before the reduce-scatters of the layers between it and its use.

At stages 1 and 2 all weights are gathered once, at the start of the step.

Gathers issued at the same point are lowered together, so that small weights share one collective.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import hooks
from t2tp.lowering.reshape import relayout_all
from t2tp.lowering.scatters import DeferredScatter
from t2tp.mesh.storage import Storage

# A layer is a variable scope that ends in a number ("decoder/layer_3"), or else the outermost one.
_LAYER = re.compile(r"^(?:[^/]*/)*?[^/]*\d+(?=/)|^[^/]*")


def lowering_order(
    operations: Sequence[upstream.Operation], storage: Storage
) -> list[list[upstream.Operation]]:
    """Orders operations for lowering and groups weight gathers that can share a collective.

    Args:
      operations: the program's operations, in program order.
      storage: the ZeRO configuration.

    Returns:
      groups in lowering order. Only weight gathers form groups of several operations.
    """
    if storage.stage == 3:
        return _prefetch_gathers(operations, storage.prefetch)
    gathers = [op for op in operations if hooks(op).gathered_variable is not None]
    if not gathers:
        return [[op] for op in operations]
    later = set(gathers[1:])
    return [gathers if op is gathers[0] else [op] for op in operations if op not in later]


def _prefetch_gathers(
    operations: Sequence[upstream.Operation], prefetch: int
) -> list[list[upstream.Operation]]:
    """Moves each weight gather to the start of the layer `prefetch` layers before its use."""
    layer_starts: list[int] = []  # Index of the first gather of each layer.
    # Keyed by the index of the operation that they move in front of.
    moved_variables: dict[int, list[upstream.Operation]] = defaultdict(list)
    moved_gathers: dict[int, dict[int, list[upstream.Operation]]] = defaultdict(
        lambda: defaultdict(list)
    )
    current_layer, layer_variables = "", set[str]()
    for index, op in enumerate(operations):
        variable = hooks(op).gathered_variable
        if variable is None:
            continue
        layer = _LAYER.match(variable)[0]  # type: ignore[index]
        # The same variable again means a new pass over the layers: the backward pass gathers a
        # weight once more, and so does recomputation.
        if not layer_starts or layer != current_layer or variable in layer_variables:
            layer_starts.append(index)
            current_layer, layer_variables = layer, set()
        layer_variables.add(variable)
        target = layer_starts[max(len(layer_starts) - 1 - prefetch, 0)]
        # The variable must exist before its gather, so it moves too.
        moved_variables[target].append(op.inputs[0].operation)
        moved_gathers[target][len(layer_starts)].append(op)
    known, done = set(operations), set[upstream.Operation]()
    groups: list[list[upstream.Operation]] = []
    for index, op in enumerate(operations):
        variables = [[variable] for variable in moved_variables[index] if variable in known]
        for group in (*variables, *moved_gathers[index].values(), [op]):
            # Skips the old place of an operation that has moved, and a variable that was already
            # moved for an earlier gather.
            if group[0] not in done:
                groups.append(group)
                done.update(group)
    return groups


def lower_gathers(operations: Sequence[upstream.Operation], lowering: Lowering) -> None:
    """Lowers weight gathers together."""
    relayouts = [hooks(op).to_gather(lowering) for op in operations]
    mesh_impl = lowering.mesh_impl(operations[0])
    for op, weight in zip(operations, relayout_all(mesh_impl, relayouts), strict=True):
        lowering.set_slice(op.outputs[0], weight)


class LatestActivation:
    """The most recently lowered activation, a control dependency of prefetched gathers.

    Without it nothing would order a gather after the layers before it: TensorFlow could gather the
    weights of all layers at once, which is the memory that stage 3 saves.
    """

    def __init__(self) -> None:
        """Starts without an activation."""
        self._latest: tf.Tensor | None = None
        self._activations: set[upstream.Tensor] = set()

    def note(self, op: upstream.Operation, lowering: Lowering) -> None:
        """Records the outputs of a lowered operation if they depend on the features."""
        is_feature = isinstance(op, upstream.ImportLaidOutTensorOperation)
        if not is_feature and not any(self._is_activation(x) for x in op.inputs):
            return
        self._activations.update(op.outputs)
        # Reading a deferred reduce-scatter would execute it.
        lowered = [
            x
            for x in op.outputs
            if x in lowering.tensors and not isinstance(lowering.tensors[x], DeferredScatter)
        ]
        if lowered and not is_feature:
            self._latest, _ = lowering.partial_sum(lowered[0])

    def value(self) -> tf.Tensor | None:
        """Returns the activation or its local partial sum; None if this graph has no activation."""
        # A tensor from a loop body cannot be a control dependency outside the loop.
        graph = tf.compat.v1.get_default_graph()
        return self._latest if self._latest is not None and self._latest.graph is graph else None

    def _is_activation(self, x: upstream.Tensor) -> bool:
        # Loop variables are outputs of the loop itself.
        return x in self._activations or isinstance(x.operation, upstream.WhileLoopOperation)
