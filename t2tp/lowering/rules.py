"""How mesh-tensorflow's operations are lowered, where t2tp replaces their own `lower`.

`RULES` at the end lists the operations. The larger rules have files of their own.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from t2tp import upstream
from t2tp.lowering import random
from t2tp.lowering.context import Lowering
from t2tp.lowering.einsum import lower_einsum, lower_one_hot
from t2tp.lowering.linear_operations import lower_add
from t2tp.lowering.reshape import lower_reshape
from t2tp.lowering.signature import sums_along_rows
from t2tp.lowering.slice_shapes import arranged
from t2tp.lowering.staged_sums import reduce_sum
from t2tp.lowering.while_loop import lower_while_loop

Rule: TypeAlias = Callable[[Any, Any], None]


def lower_shapes(op: upstream.Operation, lowering: Lowering) -> None:
    """Sets only the shapes of the outputs, for abstract programs."""
    lowering.set_shapes(op, op.inputs)


def lower_constant(op: upstream.Constant, lowering: Lowering) -> None:
    """Slices a constant: a number or an array (mesh-tensorflow documents only numbers)."""
    if np.ndim(op._value) == 0:
        op.lower(lowering)
        return
    value = tf.constant(op._value, op.outputs[0].dtype, op.outputs[0].shape.to_integer_list)
    lowering.set_tensor_lowering(
        op.outputs[0], lowering.mesh_impl(op).import_tf_tensor(op.outputs[0], value)
    )


def lower_variable(op: upstream.Variable, lowering: Lowering) -> None:
    """Looks up the variable's slice; reads the slice unless the variable is only assigned to."""
    if op.value in lowering.read:
        op.lower(lowering)
        return
    mesh_impl = lowering.mesh_impl(op)
    lowering.variables[op] = mesh_impl.LaidOutVariable(op, mesh_impl)


def lower_reduce(op: upstream.ReduceOperation, lowering: Lowering) -> None:
    """Reduces a slice; a sum over the mesh is deferred."""
    (x,), (y,) = op.inputs, op.outputs
    reduced_dims = [dim for dim in x.shape.dims if dim not in y.shape.dims]
    if op._reduction_fn_string != "SUM":
        with lowering.masking(
            [x], reduced_dims, "min" if op._reduction_fn_string == "MAX" else "max"
        ):
            upstream.ReduceOperation.lower(op, lowering)
        return
    kept_dims = [dim for dim in x.shape.dims if dim in y.shape.dims]
    dims, part = x.shape.dims, lowering.masked_slice(x, reduced_dims)
    if lowering.mesh_impl(op).layout.exact_sums and sums_along_rows(op):
        dims = [*kept_dims, *reduced_dims]
        part = arranged(part, x.shape.dims, dims)
    addend = reduce_sum(part, [dims.index(dim) for dim in reduced_dims])
    addend = arranged(addend, kept_dims, y.shape.dims)
    lowering.set_partial_sum(y, addend, reduced_dims)


def lower_generic_gradient(op: upstream.GenericGradOperation, lowering: Lowering) -> None:
    """Computes the gradient of a TensorFlow function, slice by slice.

    The results are partial derivatives. If one input is computed from another, the mtf graph adds
    the gradient through that dependency.
    """
    forward = op._forward_op
    ys = [lowering.slice(y) for y in forward.outputs]
    grad_ys = [lowering.slice(dy) for dy in op._grad_ys]
    xs = list(dict.fromkeys(forward.inputs))
    tf_xs = [lowering.slice(x) for x in xs]
    zero = tf.UnconnectedGradients.ZERO
    gradients = tf.gradients(ys, tf_xs, grad_ys, stop_gradients=tf_xs, unconnected_gradients=zero)
    grads = dict(zip(xs, gradients, strict=True))
    for x, output in zip(forward.inputs, op.outputs, strict=True):
        # If an input occurs twice, its first occurrence gets the full derivative, the second 0.
        grad = grads.pop(x, None)
        lowering.set_slice(output, tf.zeros_like(lowering.slice(x)) if grad is None else grad)


def lower_pool_gradient(op: upstream.PoolBackPropOperation, lowering: Lowering) -> None:
    """Computes the gradient of pooling; tied maxima of a window share the window's gradient."""
    if not op._pool_fn_string.startswith("MAX"):
        op.lower(lowering)
        return
    x, y, dy = (lowering.slice(tensor) for tensor in op.inputs)
    first_position = -1 - len(op._ksize)

    def to_windows(pooled: tf.Tensor) -> tf.Tensor:
        return upstream.ops._tf_upscale(pooled, first_position, -1, op._strides)

    ties = tf.cast(tf.equal(x, to_windows(y)), dy.dtype)
    average = upstream.ops.pool_fn(op._pool_fn_string.replace("MAX", "AVG"))
    num_ties = average(ties, op._ksize, op._strides, "VALID") * float(
        upstream.ops.list_product(op._ksize)
    )
    lowering.set_slice(op.outputs[0], ties * to_windows(dy / num_ties))


def lower_transposed_convolution(
    op: upstream.Conv2dTransposeOperation | upstream.Conv3dTransposeOperation, lowering: Lowering
) -> None:
    """Computes a slice of a transposed convolution.

    The inputs are [batch..., positions..., channels] and [window..., filters, channels], the output
    is [batch..., positions..., filters]. Channels and filters may be split, but not positions.
    """
    x, filters = op.inputs
    (y,) = op.outputs
    sizes = lowering.mesh_impl(op).slice_shape(y.shape)
    image = filters.shape.ndims - 1  # The number of dimensions of an image: positions and channels.
    slice_of_x = lowering.slice(x)
    flat = tf.reshape(slice_of_x, [-1, *slice_of_x.shape[-image:]])
    inverse = tf.nn.conv2d_transpose if image == 3 else tf.nn.conv3d_transpose
    image_slice = inverse(
        flat,
        lowering.slice(filters),
        output_shape=[flat.shape[0], *sizes[-image:]],
        strides=op._strides,
        padding=op._padding,
    )
    lowering.set_partial_sum(y, tf.reshape(image_slice, sizes), x.shape.dims[-1:])


def lower_random(op: upstream.RandomOperation, lowering: Lowering) -> None:
    """Generates uniform and normal random tensors with the counter-based generator."""
    output = op.outputs[0]
    kwargs = {k: v for k, v in op._kwargs.items() if k not in ("dtype", "name", "seed")}
    bits = lowering.random_bits(op.name, output.shape)
    if op._tf_fn is tf.compat.v1.random.uniform:
        low, high = kwargs.pop("minval", 0), kwargs.pop("maxval", None)
        if output.dtype.is_integer:
            if high is None:
                raise ValueError(f"{op.name}: random integers need a maxval.")
            if not 0 < high - low < 1 << 32:
                raise ValueError(
                    f"{op.name}: random integers from {low} and below {high}: the span must be"
                    " 1 to 2**32 - 1."
                )
            span = tf.constant(high - low, tf.uint32)
            value = tf.cast(low, output.dtype) + tf.cast(bits % span, output.dtype)
        else:
            high = 1.0 if high is None else high
            value = tf.cast(low + (high - low) * random.uniform(bits), output.dtype)
            # A number just below `high` may be rounded to `high`.
            value = tf.where(value < tf.cast(high, output.dtype), value, tf.cast(low, output.dtype))
    elif op._tf_fn is tf.compat.v1.random.normal:
        value = kwargs.pop("mean", 0.0) + kwargs.pop("stddev", 1.0) * random.normal(bits)
    else:
        raise ValueError(f"{op.name}: {op._tf_fn} has no mesh-independent version.")
    if kwargs:
        raise ValueError(f"{op.name}: unknown arguments {sorted(kwargs)}.")
    lowering.set_slice(output, tf.cast(value, output.dtype))


def lower_conditionally(
    op: upstream.Operation, predicate: upstream.Tensor, lower: Callable, lowering: Lowering
) -> None:
    """Lowers assignments that are executed only if `predicate` is true.

    A GPU's host would wait for a condition that the device computes. So a compiled step executes
    the assignments, and selects each variable's old or new value. XLA fuses the selection with the
    computation of the new value.
    """
    for tensor in op.inputs:
        # Reduces deferred sums outside the condition, so that other operations can use the result.
        lowering.slice(tensor)
    if lowering.mesh_impl(op).target.compiles_step:
        slices = [lowering.variables[x].laid_out_tensor.slice for x in op.variables]
        before = [variable.read_value() for variable in slices]
        lower(op, lowering)
        for variable, value in zip(slices, before, strict=True):
            after = tf.where(lowering.slice(predicate), variable, value)
            variable.assign(after, read_value=False)
        return

    def execute() -> tf.Operation:
        lower(op, lowering)
        return tf.group()

    tf.cond(lowering.slice(predicate), execute, lambda: tf.group())


def lower_depend(op: upstream.Depend, lowering: Lowering) -> None:
    """Copies a tensor after other tensors have been computed, or assignments executed.

    A deferred sum stays deferred.
    """
    waited_for: list = []
    for dependency in op._dependencies:
        if dependency in lowering.operations:
            waited_for.append(lowering.operations[dependency])
        else:
            tensors = (
                [dependency] if isinstance(dependency, upstream.Tensor) else dependency.outputs
            )
            waited_for += [lowering.slice(tensor) for tensor in tensors]
    value, axes = lowering.partial_sum(op.inputs[0])
    with tf.control_dependencies(waited_for):
        lowering.set_sum_over_axes(op.outputs[0], tf.identity(value), axes)


def lower_print(op: upstream.PrintOperation, lowering: Lowering) -> None:
    """Prints processor 0's slice of each tensor to standard error.

    Supports the arguments of `tf.compat.v1.Print`: `first_n` (how often to print) and `summarize`
    (number of elements per tensor).
    """
    slices = [lowering.slice(tensor) for tensor in op._data]
    pnum = lowering.mesh_impl(op).laid_out_pnum().slice

    def print_them() -> tf.Operation:
        printed = tf.compat.v1.Print(pnum, slices, op._message, **op._kwargs)
        return tf.group(printed)

    printing = tf.cond(tf.equal(pnum, 0), print_them, lambda: tf.group())
    with tf.control_dependencies([printing]):
        x = tf.identity(lowering.slice(op.inputs[0]))
    lowering.set_slice(op.outputs[0], x)


def lower_scalar_summary(op: upstream.ScalarSummaryOperation, lowering: Lowering) -> None:
    """Passes the scalar on; the program outputs it as `summaries/<name>`."""
    lowering.set_tensor_lowering(op.outputs[0], lowering.tensors[op.inputs[0]])


# mesh-tensorflow's operations whose `lower` is replaced.
RULES: dict[type[upstream.Operation], Rule] = {
    upstream.AddOperation: lower_add,
    upstream.EinsumOperation: lower_einsum,
    upstream.OneHotOperation: lower_one_hot,
    upstream.Constant: lower_constant,
    upstream.Conv2dTransposeOperation: lower_transposed_convolution,
    upstream.Conv3dTransposeOperation: lower_transposed_convolution,
    upstream.Depend: lower_depend,
    upstream.GenericGradOperation: lower_generic_gradient,
    upstream.PoolBackPropOperation: lower_pool_gradient,
    upstream.PrintOperation: lower_print,
    upstream.RandomOperation: lower_random,
    upstream.ReduceOperation: lower_reduce,
    upstream.ReshapeOperation: lower_reshape,
    upstream.ScalarSummaryOperation: lower_scalar_summary,
    upstream.Variable: lower_variable,
    upstream.WhileLoopOperation: lower_while_loop,
}


def rule_of(kind: type[upstream.Operation]) -> Rule:
    """Returns the rule of the operation's first base class that has one, or its own `lower`."""
    for base in kind.__mro__:
        if base in RULES or "lower" in vars(base):
            return RULES.get(base) or vars(base)["lower"]
    return kind.lower
