"""Lowering: from a graph in named dimensions to the TensorFlow program of one processor.

The graph (`mtf.Graph`) defines the computation and knows nothing of the mesh. `Lowering` goes
through the operations that outputs or side effects depend on, and lets each write its TensorFlow
operations for a processor whose number `pnum` is a *tensor*, an argument of the program. So one
program, traced once, serves all processors, and does not grow with their number.

Each tensor of the graph becomes the processor's slice. Where an operation sums over a split
dimension, the processor only has a *partial sum*: the all-reduce is deferred (`deferred_sums`)
until an operation needs the value, because by then several sums may have become one, or a slice of
the sum may be enough. `operation` explains how an operation is lowered and its hooks;
`lowering` has the rules for mesh-tensorflow's operations that are lowered differently than there.
"""
