"""Runs the program of a float32 or 16-bit step in float64.

The traced graph of the model is rewritten: every float32, bfloat16 and float16 becomes float64. So
the graph is the same as in training, with the same collectives, but without rounding to the model's
dtypes.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2, types_pb2

from t2tp.program.program import Program
from t2tp.program.variables import SlicedVariable

_NARROW = (types_pb2.DT_FLOAT, types_pb2.DT_BFLOAT16, types_pb2.DT_HALF)
_WIDE = dict.fromkeys(_NARROW, types_pb2.DT_DOUBLE)


class DoubleProgram(Program):
    """A program that computes in float64 only.

    It works on float64 copies of the variables (`value_of`). `variables` keep their values.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Builds the program; arguments as for `Program`."""
        super().__init__(*args, **kwargs)
        self._wide_slices = functools.cache(self._copied_slices)
        self._widened = functools.cache(_widen)

    def value_of(self, variable: SlicedVariable, pnum: int) -> np.ndarray:
        """Returns the current value of a processor's slice of a variable."""
        return self._wide_slices(pnum)[variable.spec.name].numpy()

    def set_value(self, variable: SlicedVariable, pnum: int, value: np.ndarray) -> None:
        """Sets a processor's slice of a variable."""
        self._wide_slices(pnum)[variable.spec.name].assign(value)

    def _copied_slices(self, pnum: int) -> dict[str, tf.Variable]:
        """Returns new copies of a processor's slices, by variable."""
        with tf.device(self.cluster.devices[pnum]):
            return {
                v.held_by(pnum).spec.name: tf.Variable(
                    tf.cast(v.slice_of(pnum), _wide_dtype(v.spec.dtype))
                )
                for v in self._used
            }

    def trace(self, size: int = 1, is_whole: bool = True) -> Any:
        """Returns a processor's program in float64: a function of pnum, span, handles, features."""
        return self._widened(super().trace(size, is_whole))

    def _call(
        self,
        pnum: int,
        function: Callable[..., dict[str, tf.Tensor]],
        span: tuple[int, int],
        batches: Sequence[list[tf.Tensor]],
    ) -> dict[str, tf.Tensor]:
        """Runs processor `pnum`'s part, in its own thread."""
        with tf.device(self.cluster.devices[pnum]):
            return function(
                tf.constant(pnum, tf.int32),
                tf.constant(span, tf.int64),
                *(variable.handle for variable in self._wide_slices(pnum).values()),
                *(tf.cast(x, _wide_dtype(x.dtype)) for slices in batches for x in slices),
            )


def _wide_dtype(dtype: tf.DType) -> tf.DType:
    return tf.float64 if dtype.is_floating else dtype


def _widen(traced: tf.types.experimental.ConcreteFunction) -> Callable[..., dict[str, tf.Tensor]]:
    """Returns a traced function with float64 in place of narrower floats."""
    graph = traced.graph
    definition = graph.as_graph_def()
    _Widening(definition).apply()
    names = sorted(traced.structured_outputs)
    outputs = [traced.structured_outputs[name].name for name in names]
    effects = [op.name for op in graph.get_operations() if op.op_def.is_stateful]
    inputs = [tensor.op.name for tensor in graph.inputs]
    signature = [tf.TensorSpec(tensor.shape, _wide_dtype(tensor.dtype)) for tensor in graph.inputs]

    def imported(*values: tf.Tensor) -> list[tf.Tensor]:
        input_map = dict(zip(inputs, values, strict=True))
        made = tf.graph_util.import_graph_def(
            definition, input_map=input_map, return_elements=[*outputs, *effects], name=""
        )
        with tf.control_dependencies(made[len(outputs) :]):
            return [tf.identity(output) for output in made[: len(outputs)]]

    wrapped = tf.compat.v1.wrap_function(imported, signature)
    return lambda *given: dict(zip(names, wrapped(*given), strict=True))


class _Widening:
    """The rewriting of a graph and of the functions that it calls, such as the bodies of loops."""

    def __init__(self, definition: graph_pb2.GraphDef) -> None:
        self._definition = definition
        # New names, because TensorFlow has registered the narrow functions under the old ones.
        self._functions = {
            function.signature.name: f"{function.signature.name}_float64"
            for function in definition.library.function
        }

    def apply(self) -> None:
        """Rewrites the graph in place."""
        self._nodes(self._definition.node)
        del self._definition.library.gradient[:]  # The graph already has the gradients.
        for function in self._definition.library.function:
            function.signature.name = self._functions[function.signature.name]
            for arg in (*function.signature.input_arg, *function.signature.output_arg):
                arg.type = _WIDE.get(arg.type, arg.type)
                arg.ClearField("experimental_full_type")
            self._attributes(function.attr)
            for arg_attributes in function.arg_attr.values():
                self._attributes(arg_attributes.attr)
            self._nodes(function.node_def)

    def _nodes(self, nodes: Iterable[node_def_pb2.NodeDef]) -> None:
        bits: set[str] = set()  # Nodes that handle floats as integers with the same bits.
        for node in nodes:
            is_bitcast = node.op == "Bitcast"
            if (is_bitcast and node.attr["T"].type in _NARROW) or bits & _inputs(node):
                if not (is_bitcast and node.attr["type"].type in _NARROW):
                    bits.add(node.name)
                for value in node.attr.values():
                    if value.type and tf.as_dtype(value.type).is_integer:
                        value.type = types_pb2.DT_INT64
            node.op = self._functions.get(node.op, node.op)
            node.ClearField("experimental_type")  # TensorFlow infers it again.
            self._attributes(node.attr)

    def _attributes(self, attributes: Mapping[str, attr_value_pb2.AttrValue]) -> None:
        for value in attributes.values():
            kind = value.WhichOneof("value")
            if kind == "type":
                value.type = _WIDE.get(value.type, value.type)
            elif kind == "tensor" and value.tensor.dtype in _WIDE:
                wide = tf.make_ndarray(value.tensor).astype(np.float64)
                value.tensor.CopyFrom(tf.make_tensor_proto(wide))
            elif kind == "func":
                self._function(value.func)
            elif kind == "list":
                value.list.type[:] = [_WIDE.get(each, each) for each in value.list.type]
                for function in value.list.func:
                    self._function(function)

    def _function(self, function: attr_value_pb2.NameAttrList) -> None:
        function.name = self._functions.get(function.name, function.name)
        self._attributes(function.attr)


def _inputs(node: node_def_pb2.NodeDef) -> set[str]:
    """Returns the names of the nodes that a node reads."""
    return {name.partition(":")[0] for name in node.input}
