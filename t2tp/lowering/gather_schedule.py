"""Schedules the all-gathers of ZeRO-sharded weights.

Each processor stores only a part of a weight and all-gathers the whole weight before its use
(`t2tp.mesh.storage`). At ZeRO stage 3 each layer gathers its own weights. The gather starts
`prefetch` layers earlier, so that the layer need not wait for it:

    prefetch=0    gather0  layer0  gather1  layer1  gather2  layer2
    prefetch=1    gather0  gather1  layer0  gather2  layer1  layer2

The backward pass goes from the last layer to the first, gathers the weights again in the same way,
and reduce-scatters the gradients of each layer:

    prefetch=1    gather2  gather1  layer2  scatter2  gather0  layer1  scatter1  layer0  scatter0

At stages 1 and 2 all weights are gathered once, at the start of the step. Gathers of the same layer
(at stages 1 and 2: all gathers) are lowered together, so that small weights share a collective.
"""

from collections import defaultdict
from collections.abc import Sequence

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.deferred_sums import Scatter
from t2tp.lowering.operation import hooks
from t2tp.lowering.reshape import relayout_all
from t2tp.mesh.layer_names import layer_of
from t2tp.mesh.storage import Storage


def lowering_order(
    operations: Sequence[upstream.Operation], storage: Storage
) -> list[list[upstream.Operation]]:
    """Orders operations for lowering and groups weight gathers that can share a collective.

    Returns:
      the groups in lowering order. A group has either gathers that share collectives, or one other
      operation.
    """
    if storage.stage == 3:
        return _prefetch_gathers(operations, storage.prefetch)
    gathers = [op for op in operations if hooks(op).gathered_variable is not None]
    first, later = gathers[:1], set(gathers[1:])
    return [gathers if op in first else [op] for op in operations if op not in later]


def _prefetch_gathers(
    operations: Sequence[upstream.Operation], prefetch: int
) -> list[list[upstream.Operation]]:
    """Moves each weight gather `prefetch` layers earlier, to the start of a layer."""
    layer_starts: list[int] = []  # Index of the first gather of each layer.
    # Index of an operation -> the variables to move right before it.
    moved_variables: dict[int, list[upstream.Operation]] = defaultdict(list)
    # Index of an operation -> layer -> the layer's gathers to move right before the operation.
    moved_gathers: dict[int, dict[int, list[upstream.Operation]]] = defaultdict(
        lambda: defaultdict(list)
    )
    current_layer, layer_variables = "", set[str]()
    for index, op in enumerate(operations):
        variable = hooks(op).gathered_variable
        if variable is None:
            continue
        # Variables outside of layers are gathered with the others of their outermost scope.
        layer = layer_of(variable) or variable.partition("/")[0]
        # A second gather of a variable begins a new pass over the layers: the backward pass, or a
        # recomputation.
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
            # Skips an operation that an earlier group contains already.
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

    A gather depends only on its variable. Without a control dependency, TensorFlow could gather the
    weights of all layers at once, and so use the memory that stage 3 should save.
    """

    def __init__(self) -> None:
        """Starts without an activation."""
        self._latest: tf.Tensor | None = None
        self._activations: set[upstream.Tensor] = set()

    def note(self, op: upstream.Operation, lowering: Lowering) -> None:
        """Records a lowered operation's outputs as activations if they depend on the features."""
        is_feature = isinstance(op, upstream.ImportLaidOutTensorOperation)
        if not is_feature and not any(self._is_activation(x) for x in op.inputs):
            return
        self._activations.update(op.outputs)
        # Reading a deferred reduce-scatter would execute it.
        lowered = [
            x
            for x in op.outputs
            if x in lowering.tensors and not isinstance(lowering.tensors[x], Scatter)
        ]
        if lowered and not is_feature:
            self._latest, _ = lowering.partial_sum(lowered[0])

    def value(self) -> tf.Tensor | None:
        """Returns the latest activation, or this processor's partial sum of it.

        None if the latest activation is not in TensorFlow's current graph.
        """
        # A tensor from a loop body cannot be a control dependency outside the loop.
        graph = tf.compat.v1.get_default_graph()
        return self._latest if self._latest is not None and self._latest.graph is graph else None

    def _is_activation(self, x: upstream.Tensor) -> bool:
        # A value that a loop carries from iteration to iteration is an activation, too. In the
        # loop's body, the value is an output of the `WhileLoopOperation`.
        return x in self._activations or isinstance(x.operation, upstream.WhileLoopOperation)
