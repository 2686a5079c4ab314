"""Operations that mesh-tensorflow lacks, gets wrong, or computes slowly.

Each module defines functions on named tensors, such as `softmax(x, dim)`, and the `t2tp.Operation`s
that these functions add to the graph. An operation's `gradient` is another operation or a formula.
Its `lower` computes one processor's slice, whichever dimensions are split, and adds the necessary
collectives.

A function that replaces one of mesh-tensorflow's has the same name and signature. `t2tp.mtf`
exports it, so that mesh-tensorflow's layers use it too. The other functions serve t2tp's layers.
`gradients` replaces gradients of mesh-tensorflow's own operations.

16-bit numbers are summed in float32. Recomputation generates the same random masks again. The
layout changes results only through the order of additions.
"""
