"""Pipeline parallelism: the layers of a stack split over an axis of the mesh, `layers:stage`.

* `schedule` has the tables that say which processor computes what, when; `schedules` makes them.
* `deal` says which layers a stage has.
* `boundary` marks in a model's graph where a stage's layers begin and end.
* `partition` cuts the graph of a microbatch there, into what a stage does in one entry of a table.
* `slots` says where a stage keeps what arrives and what its backward pass needs.
* `loop` runs a table: at each tick a processor looks its entry up and does that.
* `chain` runs stages one after the other, once: where there is no loss.

A model's code knows nothing of this. `layers.stack.Stack` builds the layers of one stage only; each
stage computes them with weights of its own (`Mesh.names_by_stage`).
"""
