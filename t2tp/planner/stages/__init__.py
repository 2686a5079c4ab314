"""The cost of pipeline stages.

The table of a pipeline schedule lists the entries of each stage in order. An entry is a pass of a
microbatch through a chunk of the stage: `F` (forward), `B` (backward) or `W` (the gradients of the
weights, if they are computed separately).

`steps` lowers the first, the last and a middle stage with few layers. `timing` simulates the table
of a schedule with the seconds of its entries. `staged_step` combines both into a plan.
"""
