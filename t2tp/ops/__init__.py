"""Operations that mesh-tensorflow lacks, gets wrong, or computes slowly.

Each module defines functions on named tensors (`softmax(x, dim)`), which add operations to the
graph, and these operations: `t2tp.Operation`s, whose `gradient` is another operation or a formula,
and whose `lower` computes a processor's slice with any dimension split, with the collectives that
it needs. Those that replace a function of mesh-tensorflow have its name and signature and are
exported by `t2tp.mtf`, so that mesh-tensorflow's layers use them too. The others serve t2tp's
layers.

Sums over 16-bit numbers are computed in float32, recomputation generates the same random masks
again, and results depend on the layout only by the order of additions.
"""
