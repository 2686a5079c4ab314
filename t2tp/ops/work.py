"""How many floating-point operations the products of a graph are."""

from __future__ import annotations

import math
from collections.abc import Iterable

from t2tp import upstream as mtf
from t2tp.mesh.lowering import all_operations
from t2tp.ops.attention_operation import AttentionOperation
from t2tp.ops.convolution import ConvolutionOperation
from t2tp.ops.local_attention import LocalAttentionOperation


def product_flops(operations: Iterable[mtf.Operation]) -> int:
    """Floating-point operations of the matrix products in a forward pass, on the whole mesh.

    A multiplication and the addition of its result are two. Einsums that sum over something,
    convolutions and attention are counted; what works element by element is not. Of attention every
    pair of a query and a place in memory counts, also those that a causal mask leaves out (as in
    6N + 12LHQT of PaLM, arXiv:2204.02311, appendix B), but a window is taken into account.

    Args:
      operations: of the pass. What a loop does is counted once.
    """
    return sum(_flops(op) for op in all_operations(operations))


def _flops(op: mtf.Operation) -> int:
    if isinstance(op, mtf.EinsumOperation):
        dims = {dim for x in op.inputs for dim in x.shape.dims}
        is_product = len(op.inputs) > 1 and dims - set(op.outputs[0].shape.dims)
        return 2 * (len(op.inputs) - 1) * math.prod(d.size for d in dims) if is_product else 0
    if isinstance(op, ConvolutionOperation):
        filters = op.inputs[1].shape
        return 2 * op.outputs[0].shape.size * filters.size // filters.dims[-1].size
    if isinstance(op, AttentionOperation):
        memory = op.inputs[1].shape.dims[-2].size
        return 4 * op.inputs[0].shape.size * min(memory, op.window or memory)
    if isinstance(op, LocalAttentionOperation):
        return 4 * op.inputs[0].shape.size * op.places_seen
    return 0
