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
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.core.config import flags
from tensorflow.python.framework import ops
from tensorflow.python.util import tf_stack

_LARGEST = 256  # Bytes, or elements of a list. Larger constants are not compared with others.


@contextlib.contextmanager
def fast_graph() -> Iterator[None]:
    """Within this context, the current graph is built faster, with fewer nodes.

    Graphs inside the current graph, such as loop bodies, need their own context. Constants with
    control dependencies, or made for another device or in a TensorFlow 1 condition, stay separate.
    TensorFlow's functions and flag are the process's: graphs of other threads change, too.
    """
    graph = tf1.get_default_graph()
    create, extract_stack = ops._create_graph_constant, tf_stack.extract_stack
    device_scopes = len([*graph._device_function_stack.peek_objs()])
    known: dict[Hashable, tf.Tensor] = {}

    def create_once(value: Any, dtype: Any, shape: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        keys = _key(value), _key(shape)
        if (
            None in keys
            or tf1.get_default_graph() is not graph
            or graph._control_flow_context is not None
            or graph._control_dependencies_stack
            or len([*graph._device_function_stack.peek_objs()]) != device_scopes
        ):
            return create(value, dtype, shape, *args, **kwargs)
        if (keys, dtype) not in known:
            known[keys, dtype] = create(value, dtype, shape, *args, **kwargs)
        return known[keys, dtype]

    in_cpp, stack = flags.config().graph_building_optimization, extract_stack()
    before = in_cpp.value()
    in_cpp.reset(True)
    tf_stack.extract_stack = lambda stacklevel=1: stack
    ops._create_graph_constant = create_once
    try:
        yield
    finally:
        ops._create_graph_constant, tf_stack.extract_stack = create, extract_stack
        in_cpp.reset(before)


def _key(value: Any) -> Hashable:
    """Returns a key that only equal values share; None if the value is not compared."""
    if isinstance(value, list | tuple) and len(value) <= _LARGEST:
        keys = tuple(map(_key, value))
        return None if None in keys else keys
    if isinstance(value, np.ndarray | np.generic):
        # The bytes of Python objects are their addresses.
        is_compared = value.nbytes <= _LARGEST and not value.dtype.hasobject
        return (value.dtype, value.shape, value.tobytes()) if is_compared else None
    # The representations of zeros with different signs differ.
    is_compared = isinstance(value, int | float | tf.TensorShape | None)
    return (type(value), repr(value)) if is_compared else None
