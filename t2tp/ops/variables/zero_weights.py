"""Variables that may be sharded at rest, their gathers, and their gradients.

With ZeRO, each processor stores only a part of a variable *at rest*, between its uses, and gathers
the whole variable before a use (`t2tp.mesh.storage`). In stages 1 and 2 a variable is gathered once
a step (`ShardedVariable`). In stage 3 each `get_variable` call gathers the weight
(`WeightGatherOperation`), and the backward pass gathers it again. The whole weight then exists only
while its layer is computed.
"""

import functools
import operator
from collections import defaultdict
from collections.abc import Sequence

import tensorflow as tf

from t2tp import upstream
from t2tp.building.mesh import VariableDeclaration, context_of
from t2tp.building.role import Role
from t2tp.building.transfer import SAME_SIZE
from t2tp.lowering.context import Lowering, Relayout
from t2tp.lowering.gather_schedule import lower_gathers
from t2tp.lowering.operation import Hooks, Operation
from t2tp.lowering.signature import ALL, Signature
from t2tp.mesh.layout_conflicts import check_tensor
from t2tp.ops.cast import CastOperation, cast


def get_variable(
    mesh: upstream.Mesh,
    name: str,
    shape: upstream.Shape | str,
    dtype: tf.DType | upstream.VariableDType | None = tf.float32,
    master_dtype: tf.DType | None = None,
    slice_dtype: tf.DType | None = None,
    activation_dtype: tf.DType | None = None,
    initializer: object = None,
    trainable: bool = True,
    frozen: bool = False,
    role: Role | None = None,
    **kwargs: object,
) -> upstream.Tensor:
    """Returns the value of a variable; creates it unless the graph has a variable of this name.

    Args:
      mesh: the program's mesh. Its layout may shard trainable variables at rest, and in stage 3
        also frozen weights.
      name: name within the variable scope.
      shape: global shape.
      dtype: dtype of the elements, or a `VariableDType` with different dtypes for storing and
        reading.
      master_dtype: instead of `dtype`: the dtype in mesh-tensorflow's checkpoints (not in t2tp's).
      slice_dtype: instead of `dtype`: the dtype in memory and in t2tp's checkpoints.
      activation_dtype: instead of `dtype`: the dtype of the value that is returned.
      initializer: a TensorFlow initializer.
      trainable: whether the optimizer changes the variable.
      frozen: whether the variable is a weight that is not trained. Stage 3 shards such weights at
        rest. Other variables that are not trained, such as running averages, are never sharded.
      role: what each dimension of the variable is for; None: not declared.
      **kwargs: arguments of `tf.get_variable`.
    """
    shape = upstream.convert_to_shape(shape)
    if not isinstance(dtype, upstream.VariableDType):
        dtype = upstream.VariableDType(
            master_dtype or dtype, slice_dtype or dtype, activation_dtype or dtype
        )
    context = context_of(mesh)
    layout = context.layout
    if layout is not None:
        check_tensor(layout, name, shape)  # Before `at_rest` renames the sharded dimension.
    scope = tf.compat.v1.get_variable_scope().name
    full_name = f"{scope}/{name}" if scope else name
    growth = SAME_SIZE
    if context.transfer is not None and role is not None:
        initializer, growth = context.transfer.scaled_initializer(full_name, role, initializer)
    context.declarations[full_name] = VariableDeclaration(role, frozen, growth)
    trainable = trainable and not frozen
    stored = shape
    # Stages 1 and 2 shard optimizer state and gradients, which frozen weights do not have.
    if layout is not None and (trainable or (frozen and layout.storage.stage == 3)):
        stored = layout.at_rest(shape)
    get = functools.partial(
        upstream.get_variable, mesh, name, stored, initializer=initializer, trainable=trainable
    )
    # If `stored == shape`, nothing is sharded, and mesh-tensorflow's own variable is enough.
    if layout is None or stored == shape:
        return get(dtype=dtype, **kwargs)
    # In stage 3 each call adds a gather of its own, so that the weight need not stay in memory
    # between uses. The part is read in the stored dtype: the gather casts it when its turn comes,
    # and not all weights are cast at the beginning of the step.
    if layout.storage.stage == 3:
        uncast = upstream.VariableDType(dtype.master_dtype, dtype.slice_dtype, dtype.slice_dtype)
        part = get(dtype=uncast, **kwargs)
        return WeightGatherOperation(part, shape, dtype.activation_dtype).outputs[0]
    # A second call, such as for an embedding that is also the output's matrix, shares the gather.
    # In this table, mesh-tensorflow's `get_variable` finds a variable again.
    known = mesh.graph.name_to_variable
    if full_name not in known:
        known[full_name] = ShardedVariable(mesh, name, shape, stored, dtype, initializer, **kwargs)
    return known[full_name].value


class ShardedVariable(Hooks, upstream.Variable):
    """A trainable variable that is sharded at rest and gathered once a step.

    The property `shape` is the shape at rest. `value` has the shape in use.
    """

    def __init__(
        self,
        mesh: upstream.Mesh,
        name: str,
        shape: upstream.Shape,
        stored: upstream.Shape,
        dtype: upstream.VariableDType,
        initializer: object,
        **kwargs: object,
    ) -> None:
        """Creates the variable: `shape` is the shape in use, `stored` the shape at rest."""
        self._stored = stored
        super().__init__(mesh, name, shape, dtype, initializer, trainable=True, **kwargs)
        self.gathered_variable = self.name  # With its scope, which mesh-tensorflow has just added.

    @property
    def shape(self) -> upstream.Shape:
        """The shape at rest."""
        return self._stored

    def lower(self, lowering: Lowering) -> None:
        lower_gathers([self], lowering)

    def to_gather(self, lowering: Lowering) -> Relayout:
        """Reads the slice at rest, converted to the dtype in use."""
        mesh_impl = lowering.mesh_impl(self)
        variable = mesh_impl.LaidOutVariable(self, mesh_impl)
        # Assignments look for the slices here.
        lowering.variables[self] = variable
        part = tf.cast(variable.laid_out_tensor.slice.read_value(), self.activation_dtype)
        return Relayout(part, self.name, self.shape, self.value.shape)


class WeightGatherOperation(Operation):
    """Gathers a variable that is sharded at rest.

    Input: the value at rest. Output: the value in the shape and dtype in use. Slices are converted
      to the dtype in use before they are sent. The gradient is a reduce-scatter.

    The gather waits for the latest activation (see `t2tp.lowering.gather_schedule`). Without this
    wait, all weights would be gathered at the beginning of the step.
    """

    signature = Signature(ordered=ALL, pads=True, cost="copy")

    def __init__(
        self,
        x: upstream.Tensor,
        shape: upstream.Shape,
        dtype: tf.DType,
        name: str = "gather_weights",
    ) -> None:
        super().__init__([x], name=name)
        self.gathered_variable = x.operation.name
        self._outputs = [upstream.Tensor(self, shape, dtype)]

    def again(self) -> upstream.Tensor:
        """Returns the output of a new operation that gathers the same weight again."""
        (y,) = self.outputs
        # This name makes it a part of the backward pass, for `t2tp.step.order`.
        name = f"{self.name}/gradients/gather_weights"
        return WeightGatherOperation(self.inputs[0], y.shape, y.dtype, name).outputs[0]

    def gradient(self, grad_ys: list[upstream.Tensor]) -> list[upstream.Tensor]:
        (x,) = self.inputs
        # Cast before the reduce-scatter: a sum over many processors in 16 bits would lose digits.
        return [_at_rest(cast(grad_ys[0], x.dtype), x.shape)]

    def lower(self, lowering: Lowering) -> None:
        lower_gathers([self], lowering)

    def to_gather(self, lowering: Lowering) -> Relayout:
        """Converts the slice to the dtype in use, after the latest activation has been computed."""
        (x,), (y,) = self.inputs, self.outputs
        before = lowering.latest_activation.value()
        part = lowering.slice(x)
        if before is not None:
            with tf.control_dependencies([before]):
                part = tf.identity(part)
        return Relayout(tf.cast(part, y.dtype), self.name, x.shape, y.shape)


def gradients(
    ys: Sequence[upstream.Tensor],
    xs: Sequence[upstream.Tensor],
    grad_ys: Sequence[upstream.Tensor | None] | None = None,
    operations: Sequence[upstream.Operation] | None = None,
) -> list[upstream.Tensor | None]:
    """Returns the gradients of the sum of `ys` w.r.t. each of `xs`; None without a dependency.

    In ZeRO stage 3 the backward pass gathers the weights again. `grad_ys` are gradients w.r.t.
    `ys`, by default ones. Gradients flow only through `operations`, by default all operations of
    the graph.
    """
    graph = ys[0].graph
    begin = len(graph.operations)
    grads = upstream.gradients(ys, xs, grad_ys, operations)
    backward = graph.operations[begin:]
    # Operations are lowered in the order of this list, so a gather must precede its readers.
    graph.operations[begin:] = _gathering_again(backward)
    grads = [None if grad is None else _added_before_scatter(grad) for grad in grads]
    for x, grad in zip(xs, grads, strict=True):
        if isinstance(x.operation, upstream.Variable):
            # For `t2tp.check_layout`.
            context_of(x.mesh).gradients[x.operation.name] = grad
    return grads


def _gathering_again(backward: list[upstream.Operation]) -> list[upstream.Operation]:
    """Adds gathers to a backward pass; returns all operations in program order.

    The backward pass reads the weights from the new gathers, so weights that the forward pass
    gathered can be freed.
    """
    inside = set(backward)
    again: dict[upstream.Tensor, upstream.Tensor] = {}
    ordered: list[upstream.Operation] = []
    for op in backward:
        for x in op.inputs:
            gather = x.operation
            if (
                isinstance(gather, WeightGatherOperation)
                and gather not in inside  # A recomputed layer has gathered for itself.
                and x not in again
            ):
                again[x] = gather.again()
                ordered.append(again[x].operation)
        if any(x in again for x in op.inputs):
            op._inputs = [again.get(x, x) for x in op.inputs]
        ordered.append(op)
    return ordered


def _added_before_scatter(grad: upstream.Tensor) -> upstream.Tensor:
    """Adds up the gradients of a weight's uses before the reduce-scatter, which then runs once.

    The gradient of a gather is a reshape to the shape at rest, which is lowered to a
    reduce-scatter. If `grad` is a sum of such reshapes, whose inputs have the same shape, returns
    one reshape of the sum of the inputs. In all other cases, and always with `exact_sums`, returns
    `grad` itself.
    """
    addends = _addends(grad)
    if (
        len(addends) == 1
        or _are_summed_first(grad)
        or not all(isinstance(x.operation, upstream.ReshapeOperation) for x in addends)
    ):
        return grad
    first, *others = (x.operation.inputs[0] for x in addends)
    if any(x.shape != first.shape for x in others):
        return grad
    return upstream.reshape(sum(others, first), grad.shape)


def separate_sums(grad: upstream.Tensor) -> list[upstream.Tensor]:
    """Returns a gradient's addends if each must be reduced over the batch by itself.

    This is the case for non-scalar gradients with `exact_sums`: there is one addend for each use of
    the variable. Otherwise the result is the gradient alone.
    """
    return _addends(grad) if grad.shape.dims and _are_summed_first(grad) else [grad]


def _addends(grad: upstream.Tensor) -> list[upstream.Tensor]:
    """Returns the addends of a gradient, in the order in which `gradients` adds them up."""
    if not isinstance(grad.operation, upstream.AddOperation):
        return [grad]
    # `gradients` adds each new addend to the sum so far: (a + b) + c.
    first, last = grad.operation.inputs
    return [*_addends(first), last]


def _are_summed_first(grad: upstream.Tensor) -> bool:
    """Whether a gradient's addends are reduced over the batch before they are added."""
    layout = context_of(grad.mesh).layout
    return layout is not None and layout.exact_sums > 0


def gradients_at_rest(
    grads: Sequence[upstream.Tensor], variables: Sequence[upstream.Variable]
) -> list[upstream.Tensor]:
    """Reduce-scatters gradients from the shapes of variables in use to the shapes at rest.

    A reduce-scatter starts as soon as its gradient is computed. With `exact_sums`, a gradient may
    be the sum of several reduce-scatters, which run at the end of the backward pass.
    """
    at_rest = [_at_rest(grad, var.shape) for grad, var in zip(grads, variables, strict=True)]
    scatters = [
        after.operation
        for grad, after in zip(grads, at_rest, strict=True)
        # A sum of several scatters would have to wait for the last of them, wherever it is.
        if grad is not after and len(after.operation.inputs) == 1
    ]
    if scatters:
        _move_to_inputs(scatters[0].graph, scatters)
    return at_rest


def _at_rest(grad: upstream.Tensor, shape: upstream.Shape) -> upstream.Tensor:
    """Reshapes a gradient, or each of its `separate_sums`, to a variable's shape at rest."""
    if grad.shape == shape:
        return grad
    return functools.reduce(operator.add, [upstream.reshape(x, shape) for x in separate_sums(grad)])


def _move_to_inputs(graph: upstream.Graph, moved: Sequence[upstream.Operation]) -> None:
    """Moves operations, with one input each, right after the operation that computes their input.

    If a cast computes this input, the cast is moved first, right after the operation that computes
    the input of the cast.
    """
    casts = [
        op.inputs[0].operation for op in moved if isinstance(op.inputs[0].operation, CastOperation)
    ]
    waiting: dict[upstream.Operation, list[upstream.Operation]] = defaultdict(list)
    for op in dict.fromkeys((*casts, *moved)):
        waiting[op.inputs[0].operation].append(op)
    known = set(graph.operations)
    later = {op for before, ops in waiting.items() if before in known for op in ops}
    ordered: list[upstream.Operation] = []

    def put(op: upstream.Operation) -> None:
        ordered.append(op)
        for user in waiting.get(op, ()):
            put(user)

    for op in graph.operations:
        if op not in later:
            put(op)
    graph.operations[:] = ordered
