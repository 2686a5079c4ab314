"""From an mtf graph to TensorFlow operations: which operations are lowered, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import tensorflow as tf

from t2tp import mtf
from t2tp.mesh import random
from t2tp.mesh.einsum import lower_einsum, lower_one_hot
from t2tp.mesh.spmd import LaidOutTensor, SpmdMeshImpl

# Operations that do something besides computing their outputs.
_EFFECTS = (mtf.ops.Assign, mtf.ops.PrintOperation, mtf.ops.ScalarSummaryOperation)


def live_operations(graph: mtf.Graph, needed: Iterable[mtf.Tensor]) -> list[mtf.Operation]:
    """The operations that `needed` tensors or effects depend on, in the order of the graph.

    Building gradients leaves many operations that nothing uses; TensorFlow would prune them, but
    never a collective.
    """
    wanted = {tensor.operation for tensor in needed}
    live = []
    for op in reversed(graph.operations):
        if op in wanted or isinstance(op, _EFFECTS):
            live.append(op)
            wanted.update(_producers(op))
    return live[::-1]


def _producers(op: mtf.Operation) -> set[mtf.Operation]:
    producers = {tensor.operation for tensor in op.inputs}
    if isinstance(op, mtf.ops.Assign):
        producers.update(op.variables)
    if isinstance(op, mtf.ops.PrintOperation):
        producers.update(tensor.operation for tensor in op._data)
    if isinstance(op, mtf.ops.Depend):
        for dependency in op._dependencies:
            producers.add(
                dependency if isinstance(dependency, mtf.Operation) else dependency.operation
            )
    if isinstance(op, mtf.ops.WhileLoopOperation):
        for inner in (*op._cond_ops, *op._body_ops):
            producers.update(_producers(inner))
    return producers


class Lowering(mtf.Lowering):
    """Lowers a graph's live operations with one `SpmdMeshImpl`."""

    def __init__(
        self,
        graph: mtf.Graph,
        mesh: mtf.Mesh,
        mesh_impl: SpmdMeshImpl,
        needed: Iterable[mtf.Tensor],
    ) -> None:
        """Lowers what `needed` tensors and the graph's effects (assignments, prints) depend on."""
        self.graph = graph
        self.mesh_to_impl = {mesh: mesh_impl}
        self.tensors: dict = {}
        self.operations: dict = {}
        self.variables: dict = {}
        self._counters: list = []
        for op in live_operations(graph, needed):
            with tf.name_scope(op.name):
                _RULES.get(type(op), type(op).lower)(op, self)

    def slice(self, tensor: mtf.Tensor) -> tf.Tensor:
        """The processor's slice of a lowered tensor, reduced if that was still to be done."""
        return self.tensors[tensor].to_laid_out_tensor().slice

    def set_slice(self, tensor: mtf.Tensor, value: tf.Tensor) -> None:
        """Says what this processor's slice of a tensor is."""
        self.set_tensor_lowering(tensor, LaidOutTensor([value]))

    def set_partial_sum(
        self, tensor: mtf.Tensor, value: tf.Tensor, summed: Iterable[mtf.Dimension]
    ) -> None:
        """Says what this processor adds to its slice of a tensor that is a sum over `summed`
        dimensions.

        The sum over the mesh axes that split them is left for later: others may join it, or nobody
        may ask.
        """
        mesh_impl = self.mesh_impl(tensor)
        axes = {mesh_impl.tensor_dimension_to_mesh_axis(dim) for dim in summed} - {None}
        laid_out = LaidOutTensor([value])
        if axes:
            laid_out = mtf.LazyAllreduceSum(mesh_impl, laid_out, sorted(axes))
        self.set_tensor_lowering(tensor, laid_out)


def _lower_random(op: mtf.ops.RandomOperation, lowering: Lowering) -> None:
    """Random uniform and normal tensors from the counter-based generator."""
    output = op.outputs[0]
    kwargs = {k: v for k, v in op._kwargs.items() if k not in ("dtype", "name", "seed")}
    bits = lowering.mesh_impl(op).random_bits(op.name, output.shape).slice
    if op._tf_fn is tf.compat.v1.random.uniform:
        low, high = kwargs.pop("minval", 0), kwargs.pop("maxval", None)
        if output.dtype.is_integer:
            if high is None:
                raise ValueError(f"{op.name}: random integers need a maxval.")
            span = tf.cast(high - low, tf.uint32)
            value = tf.cast(low, output.dtype) + tf.cast(bits % span, output.dtype)
        else:
            value = low + ((1.0 if high is None else high) - low) * random.uniform(bits)
    elif op._tf_fn is tf.compat.v1.random.normal:
        value = kwargs.pop("mean", 0.0) + kwargs.pop("stddev", 1.0) * random.normal(bits)
    else:
        raise ValueError(f"{op.name}: no mesh-independent form of {op._tf_fn} is known.")
    if kwargs:
        raise ValueError(f"{op.name}: unknown arguments {sorted(kwargs)}.")
    lowering.set_slice(output, tf.cast(value, output.dtype))


# Operations that are lowered otherwise than mesh-tensorflow does.
_RULES: dict[type[mtf.Operation], Callable[[mtf.Operation, Lowering], None]] = {
    mtf.ops.EinsumOperation: lower_einsum,
    mtf.ops.OneHotOperation: lower_one_hot,
    mtf.ops.RandomOperation: _lower_random,
}
