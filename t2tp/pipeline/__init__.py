"""Pipeline parallelism: the layers of a stack are split over a mesh axis, `layers:stage`.

A batch goes through the stages in microbatches. With 4 layers on 2 stages and 2 microbatches, the
schedule 1F1B is this table. F0 is the forward pass of microbatch 0:

    tick       0    1    2    3    4    5
    stage 0    F0   F1        B0        B1      layers 0 and 1
    stage 1         F0   B0   F1   B1           layers 2 and 3

* `assign_layers` chooses the layers of each stage.
* `boundary` marks in a model's graph where a stage's layers begin and end.
* `schedules` makes tables, and `schedule` checks and simulates them.
* `partition` cuts the graph of a microbatch at the boundaries into pieces; an entry of the table
  computes one or more pieces.
* `messages` packs the tensors that stages send, and assigns memory to messages and saved
  activations.
* `loop` is the operation: `ticks` runs the table, and `branches` does the work of an entry.
* `chain` runs the stages once, one after the other, in programs without a loss, such as decoding.

A model's code does not depend on stages. `layers.stack.Stack` builds the layers of one stage, and
each stage computes them with its own variables (`BuildContext.stage_scopes`).
"""
