"""Programs: a step in named dimensions, traced once, run on all devices at the same time.

`Program` builds the step's graph, checks it against the layout and creates the slices of its
variables on their devices. It lowers the graph to one `tf.function`, the program of one processor.
A call cuts the features into slices and runs the function in one thread per device (`executor`);
the threads meet in the collectives. The outputs stay on the devices as slices until they are read.

`variables` holds the state between calls. Initial values are computed slice by slice. A random
number depends only on a key and on the element's index in the global tensor, so the values are the
same on every mesh. `replicas` compares the copies that several processors hold. `abstract_program`
traces without devices, for shape and cost analysis on a mesh of any size.
"""
