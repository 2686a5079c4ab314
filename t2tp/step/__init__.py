"""What one step of a program does on a processor: the analysis that reports and plans read.

The analysis reads the mtf graph of a program and the log of the collectives that its lowering
emits. It needs no cluster and computes no seconds.

    order                 the operations in program order, each with its phase and its collectives
    attribution           the tensors, dimensions and variables that each collective serves
    slices, fusion        the work of each operation on a processor's slices
    lifetimes             the memory that is alive at each operation
    lowered               work, traffic and memory of a whole step

`kernels` describes what kernels of another software save and compute instead of t2tp's own. The
layout report (`t2tp.layout_report`) shows the analysis of a layout. The planner (`t2tp.planner`)
computes its seconds and bytes on a cluster.
"""
