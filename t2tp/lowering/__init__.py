"""Lowering: from a graph in named dimensions to the TensorFlow program of one processor.

The graph (`mtf.Graph`) says what is computed and knows nothing of the mesh. `Lowering` goes through
the operations that something depends on and lets each write itself, in TensorFlow, for a processor
whose number `pnum` is a *tensor*, an argument of the program. So one program, written once, serves
all processors, and does not grow with their number.

For each tensor of the graph there is then the processor's slice. Where a dimension that an
operation sums over is split, it has only an *addend*: the sum is deferred (`deferred_sums`) until
an operation needs the value, because by then several sums may have become one, or a slice of the
sum may do. How an operation writes itself, and what it declares, is in `operation`; the rules for
those of mesh-tensorflow's own that are lowered otherwise than there are in `lowering`.
"""
