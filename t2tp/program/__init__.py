"""Programs: a step in named dimensions, traced once, run on all devices at the same time.

`Program` builds the step's graph, checks it against the layout, makes the slices of its variables
on their devices, and lowers it inside of one `tf.function`: the program of one processor. A call
cuts the features into slices, runs the function in a thread for each device (`executor`), where
they meet in its collectives, and gives outputs that are put together when they are read.

`variables` holds the state between calls. Initial values are computed slice by slice from a
generator that counts elements of the global tensor, so that they are the same on every mesh.
`replicas` compares the copies that several processors hold.
`abstract_program` traces without devices, for shape and cost analysis on a mesh of any size.
"""
