"""Counts the FLOPs of a graph's matmuls."""

import math
from collections.abc import Iterable

from t2tp import upstream
from t2tp.lowering.einsum import rows_of
from t2tp.lowering.lowering import all_operations
from t2tp.lowering.operation import hooks


def matmul_flops(operations: Iterable[upstream.Operation]) -> int:
    """Counts the floating-point operations of the matmuls in a forward pass, on the whole mesh.

    A multiply-add counts as two. Einsums that sum over a dimension, convolutions, attention and
    other operations that define `matmul_flops` are included; element-wise operations are not, nor
    einsums that look up or sum rows by a one-hot tensor. Attention counts every pair of query and
    key; with a window, every pair inside the window. Pairs that a causal mask hides are counted
    too, as in PaLM's formula 6N + 12LHQT (arXiv:2204.02311, appendix B). The body of a loop is
    counted once.
    """
    return sum(_flops(op) for op in all_operations(operations))


def _flops(op: upstream.Operation) -> int:
    if isinstance(op, upstream.EinsumOperation):
        dims = {dim for x in op.inputs for dim in x.shape.dims}
        is_product = dims - set(op.outputs[0].shape.dims) and rows_of(op) is None
        return 2 * (len(op.inputs) - 1) * math.prod(d.size for d in dims) if is_product else 0
    return hooks(op).matmul_flops
