"""Sizes of a processor's slices, and the work that an operation does on them."""

from __future__ import annotations

import math
from typing import Any

from t2tp import upstream
from t2tp.lowering.operation import hooks
from t2tp.mesh.layout import Layout
from t2tp.ops.attention.operation import AttentionGradOperation, AttentionOperation
from t2tp.ops.conv.convolution import (
    ConvolutionFiltersGradOperation,
    ConvolutionInputGradOperation,
    ConvolutionOperation,
)
from t2tp.ops.norms.batch_norm import BatchNormOperation
from t2tp.ops.variables.sharded_variable import GatherOperation
from t2tp.planner.sequence import Placed
from t2tp.planner.work import ATTENTION, ATTENTION_GRAD, CONVOLUTION, PRODUCT, Work

# Beginning of an operation's type -> kind of memory-bound work. The others are element-wise.
_KINDS = {
    "LayerNorm": "norm",
    "RmsNorm": "norm",
    "BatchNorm": "batch_norm",
    "GroupNorm": "norm",
    "CrossEntropy": "cross_entropy",
    "Softmax": "softmax",
    "Gather": "gather",
    "ScatterUpdate": "gather",
    "OneHot": "gather",
    "Dropout": "random",
    "Random": "random",
    "Update": "update",
    "Assign": "update",
    "Reduce": "reduce",
    "SumOfSquares": "reduce",
    "Reshape": "copy",
    "Boundary": "free",
    "EnterStage": "free",
    "ExitStage": "free",
    "Import": "free",
    "Feature": "free",
    "Constant": "free",
    "ZeroAfter": "free",
    "TakeMicrobatch": "copy",
    "Variable": "copy",
    "ShardedVariable": "copy",
}

ELEMENTWISE = "elementwise"

# Kinds of what a compiler fuses with each other.
FUSED = (ELEMENTWISE, "random")

# Besides einsums.
_COMPUTE_BOUND = (
    AttentionOperation,
    AttentionGradOperation,
    ConvolutionOperation,
    ConvolutionInputGradOperation,
    ConvolutionFiltersGradOperation,
)


def kind_of(op: upstream.Operation) -> str:
    """Returns the kind of a memory-bound operation."""
    if isinstance(op, GatherOperation):
        return "copy"
    name = type(op).__name__
    return next((kind for start, kind in _KINDS.items() if name.startswith(start)), ELEMENTWISE)


def is_fusable(op: upstream.Operation) -> bool:
    """Whether a compiler fuses an operation with others: its work is of a kind in `FUSED`."""
    if isinstance(op, upstream.EinsumOperation):
        return len(op.inputs) > 1 and not _summed(op)
    is_compute_bound = isinstance(op, _COMPUTE_BOUND) or hooks(op).matmul_flops
    return not is_compute_bound and kind_of(op) in FUSED


def slice_elements(tensor: upstream.Tensor, layout: Layout) -> int:
    """Returns the number of elements of a processor's slice of a tensor."""
    return math.prod(layout.slice_size(tensor.shape))


def slice_bytes(tensor: upstream.Tensor, layout: Layout) -> int:
    """Returns the bytes of a processor's slice of a tensor."""
    return slice_elements(tensor, layout) * tensor.dtype.size


def _sizes(shape: upstream.Shape, layout: Layout) -> dict[upstream.Dimension, int]:
    return dict(zip(shape.dims, layout.slice_size(shape), strict=True))


def work_of(placed: Placed, layout: Layout) -> Work:
    """Returns the work of an operation that is not fused with others."""
    op = placed.operation
    tensors = [*op.inputs, *op.outputs]
    # The sliced variables of an assignment are read and written.
    moved = sum(slice_bytes(x, layout) for x in tensors)
    if isinstance(op, upstream.Assign):
        for variable in op.variables:
            elements = math.prod(layout.slice_size(variable.shape))
            moved += 2 * elements * variable.slice_dtype.size
    if isinstance(op, upstream.Variable):  # A weight that is read in the activations' dtype.
        moved += math.prod(layout.slice_size(op.shape)) * op.slice_dtype.size
    if isinstance(op, BatchNormOperation) and placed.collectives:
        moved *= 2  # The kernel that finds a slice's statistics also normalizes by them.
    largest = max(tensors, key=lambda x: x.shape.size, default=None)
    common: dict[str, Any] = {
        "phase": placed.phase,
        "times": placed.times,
        "dtype": largest.dtype.name if largest is not None else "float32",
        "num_bytes": float(moved),
        "is_recomputed": placed.is_recomputed,
        "part": placed.part,
    }
    if isinstance(op, upstream.EinsumOperation):
        sizes = _product_sizes(op, layout)
        if sizes is not None:
            return Work(PRODUCT, flops=2.0 * math.prod(sizes), sizes=sizes, **common)
        return Work(ELEMENTWISE if len(op.inputs) > 1 else "copy", flops=0.0, **common)
    if isinstance(op, (AttentionOperation, AttentionGradOperation)):
        return _attention(op, layout, common)
    if isinstance(op, ConvolutionOperation):
        return _convolution(op.outputs[0], op.inputs[1], layout, common)
    if isinstance(op, ConvolutionInputGradOperation):
        return _convolution(op.inputs[1], op.inputs[0], layout, common)
    if isinstance(op, ConvolutionFiltersGradOperation):
        return _convolution(op.inputs[1], op.outputs[0], layout, common)
    if hooks(op).matmul_flops:
        share = math.prod(layout.slice_size(op.outputs[0].shape)) / op.outputs[0].shape.size
        return Work(CONVOLUTION, flops=hooks(op).matmul_flops * share, **common)
    return Work(kind_of(op), flops=0.0, **common)


def _product_sizes(op: upstream.EinsumOperation, layout: Layout) -> tuple[int, ...] | None:
    """Returns batch, rows, columns and summed elements; None if nothing is multiplied and summed.

    Of an einsum of more than two tensors the first two are taken for the matmul.
    """
    summed = _summed(op)
    if len(op.inputs) < 2 or not summed:
        return None
    x, y = (_sizes(t.shape, layout) for t in op.inputs[:2])
    z = _sizes(op.outputs[0].shape, layout)
    both = {**x, **y}
    return (
        math.prod(size for dim, size in both.items() if dim in x and dim in y and dim in z),
        math.prod(size for dim, size in x.items() if dim not in y and dim in z),
        math.prod(size for dim, size in y.items() if dim not in x and dim in z),
        math.prod(both[dim] for dim in summed),
    )


def _summed(op: upstream.EinsumOperation) -> list[upstream.Dimension]:
    """Returns the dimensions of the first two inputs that the result does not have."""
    dims = dict.fromkeys(dim for x in op.inputs[:2] for dim in x.shape.dims)
    return [dim for dim in dims if dim not in op.outputs[0].shape.dims]


def _attention(
    op: AttentionOperation | AttentionGradOperation, layout: Layout, common: dict
) -> Work:
    q, k = op.inputs[:2]
    *outer, length, d_kv = layout.slice_size(q.shape)
    options = op._options
    memory = min(k.shape.dims[-2].size, options.window or k.shape.dims[-2].size)
    sizes = (math.prod(outer), length, memory, d_kv)
    is_forward = isinstance(op, AttentionOperation)
    products = 2 if is_forward else 4 if not options.is_blockwise else 5
    return Work(
        ATTENTION if is_forward else ATTENTION_GRAD,
        flops=2.0 * products * math.prod(sizes),
        sizes=sizes,
        causal=options.causal and not options.window,
        dropout=options.dropout_rate > 0,
        keeps_scores=not options.is_blockwise,
        **common,
    )


def _convolution(
    result: upstream.Tensor, filters: upstream.Tensor, layout: Layout, common: dict
) -> Work:
    height, width, channels, _ = layout.slice_size(filters.shape)
    positions = math.prod(layout.slice_size(result.shape))
    return Work(CONVOLUTION, flops=2.0 * positions * height * width * channels, **common)
