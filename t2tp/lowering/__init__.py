"""Lowering: from a graph in named dimensions to the TensorFlow program of one processor.

The graph (`mtf.Graph`) defines the computation and does not depend on the mesh. `Lowering` visits
the operations that outputs or side effects depend on. Each operation adds its TensorFlow operations
for one processor. The processor's number `pnum` is a *tensor*, an argument of the program, so one
traced program serves any number of processors.

Each tensor of the graph becomes the processor's slice. If an operation sums over a split dimension,
the processor has only a *partial sum*. The all-reduce is deferred (`deferred_sums`) until an
operation needs the value. `operation` explains how an operation is lowered. `rules` lists
mesh-tensorflow's operations that t2tp lowers differently.
"""
