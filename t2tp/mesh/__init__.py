"""The mesh: the slices that a layout puts on each device, and how devices communicate.

A mesh is an array of devices with named axes, for example `data:2;model:4`. The devices of a mesh
are its *processors*, numbered row by row: `pnum` is 0 to 7, with the coordinates `pnum // 4` on
`data` and `pnum % 4` on `model`. A `Layout` defines which dimension of a tensor is split over which
axis. A processor holds the *slice* of a tensor that its coordinates select. Processors that differ
only along axes that do not split the tensor hold the same slice. `Collectives` emits the operations
that communicate. A collective over some axes runs in groups of processors with equal coordinates on
the other axes: an all-reduce over `model` runs among processors 0 to 3, and among 4 to 7.
"""
