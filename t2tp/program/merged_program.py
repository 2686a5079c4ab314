"""All processors' programs merged into one, so that XLA can compile them.

XLA compiles no collectives of CPUs, and the pieces of a program between them are too small to be
worth compiling. But virtual CPU devices share their memory. So the traced program of one processor
is copied into one function, once for each processor, and a collective becomes an operation on the
tensors of all its members: an all-reduce is a sum. What the copies have in common is there once:
equal slices of a variable, operations on the same tensors, and matmuls of several processors' rows
with the same matrix. (Loop variables are not shared: each processor has its own.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from t2tp.mesh.collectives import Groups
from t2tp.mesh.layout import LayoutError
from t2tp.processes.cluster import Cluster
from t2tp.program.variables import SlicedVariable, StagedVariable

# For each processor, the inputs or the outputs of an operation.
_Each: TypeAlias = "list[list[tf.Tensor]]"

_MERGE = {"Add": tf.add, "Max": tf.maximum, "Min": tf.minimum}


def side_effect_error(effect: str) -> LayoutError:
    """The error of a program of several devices that has side effects and is to be compiled."""
    return LayoutError(
        "xla compiles the program of several devices only if it assigns and prints nothing, and"
        f" here is {effect!r}: leave xla out (--noxla)."
    )


class MergedProgram:
    """A program without assignments, for all processors at once."""

    def __init__(
        self,
        concrete: tf.types.experimental.ConcreteFunction,
        groups: Mapping[int, Groups],
        variables: Sequence[SlicedVariable | StagedVariable],
        cluster: Cluster,
    ) -> None:
        """Prepares the program; XLA compiles it when it is first called.

        Args:
          concrete: one processor's program: `(pnum, step, variable slices, feature slices) ->
            outputs` by name.
          groups: of its collectives, by their instance keys.
          variables: whose slices it takes.
          cluster: virtual CPU devices of this process.
        """
        self._concrete = concrete
        self._groups = groups
        self._cluster = cluster
        # The different slices; and for each processor, the indices of its own.
        self._slices: list[tf.Variable] = []
        self._own: list[list[int]] = [[] for _ in cluster.local_pnums]
        for variable in variables:
            numbers: dict[tuple[str, tuple[int, ...]], int] = {}
            for pnum, own in zip(cluster.local_pnums, self._own, strict=True):
                which = variable.held_by(pnum).spec.name, variable.begin(pnum)
                if which not in numbers:
                    numbers[which] = len(self._slices)
                    self._slices.append(variable.slice_of(pnum))
                own.append(numbers[which])
        self._sent: dict[int, list[tf.Tensor]] = {}  # by the instance key of the send
        self._run = tf.function(self._all, jit_compile=True, autograph=False)
        self._compiled: tf.types.experimental.ConcreteFunction | None = None

    def __call__(
        self, step: int, features: Sequence[list[tf.Tensor]]
    ) -> list[dict[str, tf.Tensor]]:
        """Runs the program, from each processor's slices of features to its slices of outputs.

        Raises:
          LayoutError: a function in it assigns or prints.
        """
        with tf.device(self._cluster.devices[0]):
            weights = [part.read_value() for part in self._slices]
            given = (tf.constant(step, tf.int64), weights, list(features))
            if self._compiled is None:  # TensorFlow warns of many functions of one name.
                self._compiled = self._run.get_concrete_function(*given)
            return self._compiled(*given)

    def _all(
        self, step: tf.Tensor, weights: list[tf.Tensor], features: list[list[tf.Tensor]]
    ) -> list[dict[str, tf.Tensor]]:
        """The function that XLA compiles."""
        inputs = [
            [
                tf.constant(pnum, tf.int32),
                step,
                *(weights[number] for number in own),
                *slices,
                *self._concrete.captured_inputs,
            ]
            for pnum, (own, slices) in enumerate(zip(self._own, features, strict=True))
        ]
        outputs = self._copied(self._concrete.graph, inputs)
        structure = self._concrete.structured_outputs
        return [tf.nest.pack_sequence_as(structure, flat) for flat in outputs]

    def _copied(self, graph: tf.Graph, inputs: _Each) -> _Each:
        """Copies a function's graph into the current one for each processor; returns outputs."""
        _check_no_side_effects(graph)
        values = [
            {parameter.ref(): x for parameter, x in zip(graph.inputs, own, strict=True)}
            for own in inputs
        ]
        for op in _needed(graph):
            results = self._copied_operation(op, [[v[x.ref()] for x in op.inputs] for v in values])
            for own, outputs in zip(values, results, strict=True):
                own |= {out.ref(): x for out, x in zip(op.outputs, outputs, strict=True)}
        return [[v[x.ref()] for x in graph.outputs] for v in values]

    def _copied_operation(self, op: tf.Operation, operands: _Each) -> _Each:
        """Copies an operation for each processor, once for those with the same operands."""
        if op.type in _COLLECTIVES:
            instance = tf.get_static_value(op.inputs[3])
            parts = [inputs[0] for inputs in operands]
            return [[x] for x in _COLLECTIVES[op.type](op, parts, self._groups[int(instance)])]
        if op.type == "CollectiveBcastSendV2":
            instance = int(tf.get_static_value(op.inputs[3]))
            self._sent[instance] = [inputs[0] for inputs in operands]
            return [[inputs[0]] for inputs in operands]
        if op.type == "CollectiveBcastRecvV2":
            return self._received(op)
        if _has_collectives(op):
            return self._loop(op, operands) if _is_loop(op) else self._branches(op, operands)
        if op.type == "MatMul" and not op.get_attr("transpose_a"):
            return _matmuls(op, operands)
        # TensorFlow's own random operations give each processor other numbers.
        each_has_its_own = op.op_def.is_stateful and op.type not in _ON_VALUES
        copies: dict[tuple, list[tf.Tensor]] = {}
        results = []
        for pnum, inputs in enumerate(operands):
            same = (pnum if each_has_its_own else None, *(x.ref() for x in inputs))
            if same not in copies:
                copies[same] = self._copied_alone(op, inputs)
            results.append(copies[same])
        return results

    def _copied_alone(self, op: tf.Operation, operands: list[tf.Tensor]) -> list[tf.Tensor]:
        """Copies an operation for one processor, or for several with the same operands."""
        if _is_loop(op):  # without collectives: processors may leave it at different times
            return self._loop(op, [operands])[0]
        if op.type in _ON_VALUES and operands[0].dtype != tf.resource:
            return _ON_VALUES[op.type](op, operands)
        if op.type == "Bitcast" and any(x.dtype.is_complex for x in (*op.inputs, *op.outputs)):
            return [_cast_complex(operands[0])]
        copies = _copy(op, operands)
        for copied, own in zip(copies, op.outputs, strict=True):
            copied.set_shape(own.shape)  # TensorFlow does not infer those of a function's results.
        return copies

    def _received(self, op: tf.Operation) -> _Each:
        """What each processor receives of what the others have sent; zeros if nothing."""
        instance = int(tf.get_static_value(op.inputs[2]))
        sent = self._sent[instance]
        nothing = tf.zeros_like(sent[0])
        return [[sent[own[0]] if own else nothing] for own in self._groups[instance]]

    def _branches(self, op: tf.Operation, operands: _Each) -> _Each:
        """Both branches of a conditional with collectives, and each processor's choice of them.

        XLA knows the choice, and drops the other branch.
        """
        then, otherwise = (
            self._copied(graph, [own[1:] for own in operands]) for graph in _inner_graphs(op)
        )
        return [
            [tf.where(own[0], x, y) for x, y in zip(xs, ys, strict=True)]
            for own, xs, ys in zip(operands, then, otherwise, strict=True)
        ]

    def _loop(self, op: tf.Operation, operands: _Each) -> _Each:
        """One loop of some processors, which they leave together.

        The loop's variables are a list for each processor, of those of its operands that vary. The
        condition is asked of the first processor only: where a loop has collectives, what is
        lowered makes all processors' conditions agree (`Target.leaves_loops_together`).
        """
        condition, body = op._cond_graph, op._body_graph
        # What the body only hands on (weights, mostly) is captured from outside instead: as a loop
        # variable each processor would have its own copy, and nothing computed from it be shared.
        varying = [i for i, x in enumerate(body.outputs) if x is not body.inputs[i]]

        def all_operands(*state: Sequence[tf.Tensor]) -> _Each:
            merged = [list(own) for own in operands]
            for own, values in zip(merged, state, strict=True):
                for i, value in zip(varying, values, strict=True):
                    own[i] = value
            return merged

        def step(*state: Sequence[tf.Tensor]) -> _Each:
            return _picked(self._copied(body, all_operands(*state)), varying)

        def goes_on(*state: Sequence[tf.Tensor]) -> tf.Tensor:
            return self._copied(condition, all_operands(*state))[0][0]

        return all_operands(*tf.while_loop(goes_on, step, _picked(operands, varying)))


def _picked(each: _Each, indices: Sequence[int]) -> _Each:
    return [[tensors[i] for i in indices] for tensors in each]


def _needed(graph: tf.Graph) -> list[tf.Operation]:
    """The operations that a function's outputs depend on, in their order."""
    required = {x.op for x in graph.outputs}
    needed = []
    parameters = {x.op for x in graph.inputs}
    for op in reversed(graph.get_operations()):
        if op in required and op not in parameters:
            needed.append(op)
            required.update(x.op for x in op.inputs)
            # A receiver has no input from its sender's.
            required.update(
                x for x in op.control_inputs if _is_collective(x) or _has_collectives(x)
            )
    return needed[::-1]


def _check_no_side_effects(graph: tf.Graph) -> None:
    """Raises an error if a function has side effects, such as those of a model author's code.

    Only what outputs depend on is copied, so they would be lost.

    Assertions are dropped, as XLA does on any number of devices.
    """
    for op in graph.get_operations():
        if op.op_def.is_stateful and not op.outputs and op.type != "Assert":
            raise side_effect_error(op.name)


def _is_loop(op: tf.Operation) -> bool:
    return op.type in ("While", "StatelessWhile")


def _is_conditional(op: tf.Operation) -> bool:
    return op.type in ("If", "StatelessIf")


def _inner_graphs(op: tf.Operation) -> list[tf.Graph]:
    """Condition and body of a loop, or the branches of a conditional: what is true first."""
    if _is_loop(op):
        return [op._cond_graph, op._body_graph]
    return [op._true_graph, op._false_graph] if _is_conditional(op) else []


def _is_collective(op: tf.Operation) -> bool:
    return op.type in _COLLECTIVES or op.type in _POINT_TO_POINT


def _has_collectives(op: tf.Operation) -> bool:
    """Whether a loop or conditional has collectives, also in one inside of it."""
    return any(
        _is_collective(inner) or _has_collectives(inner)
        for graph in _inner_graphs(op)
        for inner in graph.get_operations()
    )


def _copy(op: tf.Operation, operands: list[tf.Tensor]) -> list[tf.Tensor]:
    """The operation on other operands, in the current graph."""
    node = op.node_def
    copied = tf.compat.v1.get_default_graph().create_op(
        op.type,
        operands,
        [x.dtype for x in op.outputs],
        name=op.name,
        attrs={name: node.attr[name] for name in node.attr},
    )
    return list(copied.outputs)


def _cast_complex(x: tf.Tensor) -> tf.Tensor:
    """Bitcasts complex numbers [...] to their parts [..., 2], or back, as `tf.bitcast`.

    XLA has no such operation.
    """
    if x.dtype.is_complex:
        return tf.stack([tf.math.real(x), tf.math.imag(x)], axis=-1)
    return tf.complex(x[..., 0], x[..., 1])


def _matmuls(op: tf.Operation, operands: _Each) -> _Each:
    """Merges matmuls of rows with the same matrix into one, which reads the matrix once.

    Reading the matrix takes most of the time if there are few rows.
    """
    by_matrix: dict[Any, dict[Any, tf.Tensor]] = {}
    for rows, matrix in operands:
        by_matrix.setdefault(matrix.ref(), {})[rows.ref()] = rows
    products: dict[tuple, list[tf.Tensor]] = {}
    for matrix, rows in by_matrix.items():
        each = list(rows.values())
        stacked = each[0] if len(each) == 1 else tf.concat(each, 0)
        (product,) = _copy(op, [stacked, matrix.deref()])
        parts = [product] if len(each) == 1 else tf.split(product, [x.shape[0] for x in each])
        products |= {(ref, matrix): [part] for ref, part in zip(rows, parts, strict=True)}
    return [products[rows.ref(), matrix.ref()] for rows, matrix in operands]


def _sums(op: tf.Operation, parts: list[tf.Tensor], groups: Groups) -> list[tf.Tensor]:
    merge = _MERGE[op.get_attr("merge_op").decode()]

    def merged(members: Sequence[int]) -> tf.Tensor:
        result = parts[members[0]]
        for member in members[1:]:
            result = merge(result, parts[member])
        return result

    return _once(groups, merged)


def _gathered(op: tf.Operation, parts: list[tf.Tensor], groups: Groups) -> list[tf.Tensor]:
    del op
    return _once(groups, lambda members: tf.concat([parts[member] for member in members], 0))


def _exchanged(op: tf.Operation, parts: list[tf.Tensor], groups: Groups) -> list[tf.Tensor]:
    del op
    cut = [tf.unstack(part) for part in parts]
    return [
        tf.stack([cut[member][members.index(pnum)] for member in members])
        for pnum, members in enumerate(groups)
    ]


def _once(groups: Groups, make: Callable[[Sequence[int]], tf.Tensor]) -> list[tf.Tensor]:
    """The result of a collective for each processor, computed once for the members of a group."""
    results = {members: make(members) for members in dict.fromkeys(map(tuple, groups))}
    return [results[tuple(members)] for members in groups]


_COLLECTIVES = {
    "CollectiveReduceV2": _sums,
    "CollectiveGatherV2": _gathered,
    "CollectiveAllToAllV2": _exchanged,
}

_POINT_TO_POINT = ("CollectiveBcastSendV2", "CollectiveBcastRecvV2")

# Operations that read the program's variables, which are values here.
_ON_VALUES: dict[str, Callable[[tf.Operation, list[tf.Tensor]], list[tf.Tensor]]] = {
    "ReadVariableOp": lambda op, operands: operands,
    "ResourceGather": lambda op, operands: [
        tf.gather(*operands, batch_dims=op.get_attr("batch_dims"))
    ],
}
