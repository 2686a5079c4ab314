"""Builds TensorFlow graphs faster.

A third of the nodes that TensorFlow's Python API creates are constants: shapes, axes, powers of
two. Each node costs time when the program is traced, and on each device when it first runs. So
equal small constants are created once per graph instead of once per use.

TensorFlow checks the inputs of a new node in Python, unless `graph_building_optimization`, a flag
that is off by default, moves this work to C++. It also records the Python stack of each node, for
error messages. These stacks are all inside t2tp, since a model's code has returned when its
operations are lowered. So a graph's nodes share one stack.
"""

import contextlib
from collections.abc import Iterator

import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.core.config import flags
from tensorflow.python.util import tf_stack

_LARGEST = 256  # Bytes. Larger constants are not compared with others.


@contextlib.contextmanager
def fast_graph() -> Iterator[None]:
    """Within this context, the current graph is built faster, with fewer nodes.

    Graphs inside the current graph, such as loop bodies, need their own context. Constants with
    control dependencies, or made for another device or in a TensorFlow 1 condition, stay separate.
    TensorFlow's flag and stacks are the process's: graphs of other threads change, too.
    """
    graph = tf1.get_default_graph()
    create = graph._create_op_internal
    device_scopes = len([*graph._device_function_stack.peek_objs()])
    known: dict[bytes, tf.Operation] = {}

    def create_once(op_type: str, *args: object, **kwargs: object) -> tf.Operation:
        if op_type != "Const" or not (
            graph._control_flow_context is None
            and not graph._control_dependencies_stack
            and len([*graph._device_function_stack.peek_objs()]) == device_scopes
        ):
            return create(op_type, *args, **kwargs)
        value = kwargs["attrs"]["value"].tensor  # type: ignore[index]
        if value.ByteSize() > _LARGEST:
            return create(op_type, *args, **kwargs)
        key = value.SerializeToString()
        if key not in known:
            known[key] = create(op_type, *args, **kwargs)
        return known[key]

    in_cpp = flags.config().graph_building_optimization
    before = in_cpp.value()
    in_cpp.reset(True)
    extract_stack, stack = tf_stack.extract_stack, tf_stack.extract_stack()
    tf_stack.extract_stack = lambda stacklevel=1: stack
    graph._create_op_internal = create_once
    try:
        yield
    finally:
        del graph._create_op_internal
        tf_stack.extract_stack = extract_stack
        in_cpp.reset(before)
