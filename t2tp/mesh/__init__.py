"""The mesh: the slices that a layout puts on each device, and how devices communicate.

A mesh is an array of devices with named axes, `data:2;model:4`. Its devices, called *processors*
where they take part in it, are numbered row by row: `pnum` 0 to 7, of coordinates `pnum // 4` on
`data` and `pnum % 4` on `model`. A `Layout` says which dimension of a tensor is split over which
axis; a processor holds the *slice* that its coordinates select, and processors that differ only
along axes that split nothing hold the same slice. `Collectives` emits the operations between them.
Each runs in groups, one for each setting of the other coordinates: an all-reduce over `model` is
made by 0 to 3, and by 4 to 7.
"""
