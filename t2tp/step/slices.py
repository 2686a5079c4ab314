"""Computes the sizes of a processor's slices, and the work of an operation on them."""

import math
from typing import Any

from t2tp import upstream
from t2tp.lowering.einsum import operands, rows_of
from t2tp.lowering.operation import hooks, signature_of
from t2tp.mesh.layout import Layout
from t2tp.ops.norms.batch_norm import BatchNormGradOperation, BatchNormOperation
from t2tp.step.order import Placed
from t2tp.step.work import (
    ATTENTION,
    ATTENTION_GRAD,
    COMPUTE_BOUND,
    CONVOLUTION,
    COPY,
    ELEMENTWISE,
    GATHER,
    PRODUCT,
    Work,
)


def kind_of(op: upstream.Operation) -> str:
    """Returns the kind of an operation's work.

    An einsum without a summed dimension is element-wise, an einsum of a single tensor is a copy,
    and an einsum with a one-hot tensor may be a look-up. An operation with `matmul_flops` counts as
    a convolution unless it declares a kind.
    """
    if isinstance(op, upstream.EinsumOperation):
        if len(op.inputs) < 2:
            return COPY
        if rows_of(op) is not None:
            return GATHER
        return PRODUCT if _summed(op) else ELEMENTWISE
    cost = signature_of(op).cost
    return CONVOLUTION if cost == ELEMENTWISE and hooks(op).matmul_flops else cost


def slice_elements(tensor: upstream.Tensor, layout: Layout) -> int:
    """Returns the number of elements of a processor's slice of a tensor."""
    return math.prod(layout.slice_size(tensor.shape))


def slice_bytes(tensor: upstream.Tensor, layout: Layout) -> int:
    """Returns the bytes of a processor's slice of a tensor."""
    return slice_elements(tensor, layout) * tensor.dtype.size


def _sizes(shape: upstream.Shape, layout: Layout) -> dict[upstream.Dimension, int]:
    return dict(zip(shape.dims, layout.slice_size(shape), strict=True))


def updated_bytes(op: upstream.Operation, layout: Layout) -> int:
    """Returns the bytes that an operation moves to read and write the variables that it updates."""
    variables = op.variables if isinstance(op, upstream.Assign) else ()
    sizes = (math.prod(layout.slice_size(v.shape)) * v.slice_dtype.size for v in variables)
    return 2 * sum(sizes)


def work_of(placed: Placed, layout: Layout) -> Work:
    """Returns the work of an operation that is not fused with others."""
    op, kind = placed.operation, kind_of(placed.operation)
    is_einsum = isinstance(op, upstream.EinsumOperation)
    tensors = [*(operands(op) if is_einsum else op.inputs), *op.outputs]
    moved = sum(slice_bytes(x, layout) for x in tensors)
    moved += updated_bytes(op, layout)
    if isinstance(op, upstream.Variable):  # It casts a weight to the dtype of the activations.
        moved += math.prod(layout.slice_size(op.shape)) * op.slice_dtype.size
    if isinstance(op, BatchNormOperation | BatchNormGradOperation) and placed.collectives:
        # TensorFlow's kernels compute the sums of a slice together with its result, which must be
        # computed again after the collectives.
        moved *= 2
    # A matmul multiplies in the dtype of its inputs, also if it adds up in another.
    read = op.inputs if kind == PRODUCT else tensors
    largest = max(read, key=lambda x: x.shape.size, default=None)
    sizes: tuple[int, ...] = ()
    details: dict[str, Any] = {}
    flops = 0.0
    if kind == PRODUCT:
        sizes = _product_sizes(op, layout) if is_einsum else hooks(op).product_sizes(layout)
        flops = 2.0 * math.prod(sizes)
    elif kind in (ATTENTION, ATTENTION_GRAD):
        sizes, flops, details = _attention(op, kind == ATTENTION, layout)
    elif kind in COMPUTE_BOUND:
        (y, *_) = op.outputs
        share = slice_elements(y, layout) / y.shape.size
        flops = hooks(op).slice_flops(layout) or hooks(op).matmul_flops * share
    return Work(
        kind,
        phase=placed.phase,
        times=placed.times,
        dtype=largest.dtype.name if largest is not None else "float32",
        flops=flops,
        num_bytes=float(moved),
        sizes=sizes,
        is_recomputed=placed.is_recomputed,
        part=placed.part,
        **details,
    )


def _product_sizes(op: upstream.Operation, layout: Layout) -> tuple[int, ...]:
    """Returns batch, rows, columns and summed elements of an einsum's first two inputs."""
    x, y = (_sizes(t.shape, layout) for t in op.inputs[:2])
    z = _sizes(op.outputs[0].shape, layout)
    both = {**x, **y}
    return (
        math.prod(size for dim, size in both.items() if dim in x and dim in y and dim in z),
        math.prod(size for dim, size in x.items() if dim not in y and dim in z),
        math.prod(size for dim, size in y.items() if dim not in x and dim in z),
        math.prod(both[dim] for dim in _summed(op)),
    )


def _summed(op: upstream.Operation) -> list[upstream.Dimension]:
    """Returns the dimensions of an einsum's first two inputs that the result lacks."""
    dims = dict.fromkeys(dim for x in op.inputs[:2] for dim in x.shape.dims)
    return [dim for dim in dims if dim not in op.outputs[0].shape.dims]


def _attention(
    op: Any, is_forward: bool, layout: Layout
) -> tuple[tuple[int, ...], float, dict[str, Any]]:
    """Returns sizes, FLOPs and details of attention or its gradient."""
    q, k = op.inputs[:2]
    *outer, length, d_kv = layout.slice_size(q.shape)
    options = (op if is_forward else op.forward)._options
    keys = min(k.shape.dims[-2].size, options.window or k.shape.dims[-2].size)
    sizes = (math.prod(outer), length, keys, d_kv)
    # Blockwise attention computes the scores again in the backward pass.
    products = 2 if is_forward else 4 if not options.is_blockwise else 5
    details = {
        "causal": options.causal and not options.window,
        "dropout": options.dropout_rate > 0,
        "keeps_scores": not options.is_blockwise,
    }
    return sizes, 2.0 * products * math.prod(sizes), details
