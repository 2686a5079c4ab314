"""Attention as an operation on a mesh, and its gradient: from slices to what one processor
computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.ops import attention_blockwise, attention_dense
from t2tp.ops.attention_bias import Bias
from t2tp.ops.attention_block import Queries
from t2tp.ops.attention_dropout import Dropout
from t2tp.ops.attention_gathered import Gathered
from t2tp.ops.attention_heads import SharedHeads
from t2tp.ops.attention_mask import Mask
from t2tp.ops.attention_terms import Terms

if TYPE_CHECKING:
    from t2tp.mesh.lowering import Lowering
    from t2tp.mesh.spmd import SpmdMeshImpl


@dataclass(frozen=True)
class Options:
    """What is the same in both passes; see `attention`.

    Attributes:
      extras: names of the inputs after q, k and v: `segments`, `memory_segments`, `bias_table`.
    """

    causal: bool
    window: int | None
    memory_stride: int
    max_distance: int
    dropout_rate: float
    is_blockwise: bool
    extras: tuple[str, ...]


class AttentionOperation(mtf.Operation):
    """Inputs q [batch..., heads, length, d_kv], k and v [batch..., kv_heads, memory, d_kv], extras.

    Outputs the result, like q, and what the backward pass needs: blockwise the logarithm of each
    query's sum of exponentials [batch..., heads, length] and, of 16 bits, what the result was
    rounded by, like q; else the weights [batch..., heads, length, memory], whose memory is whole
    even where a layout splits that of k and v.
    """

    def __init__(self, inputs: Sequence[mtf.Tensor], options: Options) -> None:
        super().__init__(list(inputs), name="attention")
        self._options = options
        self._drawn_by = self.name
        self.draw_after: mtf.Tensor | None = None  # set when this is a recomputation
        q, k = inputs[:2]
        *batch, heads, length, _ = q.shape.dims
        kv_heads, memory, _ = k.shape.dims[-3:]
        if options.is_blockwise:
            kept = mtf.Tensor(self, mtf.Shape([*batch, heads, length]), tf.float32, index=1)
        else:
            # No layout has a name of two words.
            whole = mtf.Dimension(f"whole {memory.name}", memory.size)
            kept = mtf.Tensor(self, mtf.Shape([*batch, heads, length, whole]), q.dtype, index=1)
        self._outputs = [mtf.Tensor(self, q.shape, q.dtype, index=0), kept]
        if options.is_blockwise and q.dtype.size < 4:
            self._outputs.append(mtf.Tensor(self, q.shape, q.dtype, index=2))
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_splittable_and_unsplittable_dims(
                "unsplittable", [d.name for d in (*batch, heads, kv_heads, length, memory)]
            )
        )

    @property
    def window(self) -> int | None:
        """How many places a query sees at most; None: all."""
        return self._options.window

    def gradient(self, grad_ys: list[mtf.Tensor | None]) -> list[mtf.Tensor | None]:
        inputs = [*self.inputs, *self.outputs, grad_ys[0]]
        backward = AttentionGradOperation(inputs, len(self.outputs), self._options, self._drawn_by)
        backward.draw_after = self.draw_after
        extras: dict[str, mtf.Tensor | None] = dict.fromkeys(self._options.extras)
        if "bias_table" in extras:
            extras["bias_table"] = backward.outputs[3]
        return [*backward.outputs[:3], *extras.values()]

    def lower(self, lowering: Lowering) -> None:
        part = _Part(lowering, self.inputs, self._options, self._drawn_by)
        lowered = attention_blockwise if self._options.is_blockwise else attention_dense
        values = lowered.forward(part.q, part.k, part.v, part.terms)
        for output, value in zip(self.outputs, values, strict=True):
            sizes = lowering.mesh_impl(self).slice_shape(output.shape)
            lowering.set_slice(output, tf.reshape(value, sizes))


class AttentionGradOperation(mtf.Operation):
    """Inputs those of attention, its `num_outputs` outputs and the gradient by the result; outputs
    the gradients by q, k, v and, if there is one, the bias table."""

    def __init__(
        self, inputs: Sequence[mtf.Tensor], num_outputs: int, options: Options, drawn_by: str
    ) -> None:
        """Computes with the dropout mask of the operation named `drawn_by`."""
        super().__init__(list(inputs), name="attention_grad")
        self._num_outputs = num_outputs
        self._options = options
        self._drawn_by = drawn_by
        self.draw_after: mtf.Tensor | None = None
        by = list(inputs[:3])
        if "bias_table" in options.extras:
            by.append(inputs[3 + options.extras.index("bias_table")])
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype, index=i) for i, x in enumerate(by)]

    def lower(self, lowering: Lowering) -> None:
        part = _Part(lowering, self.inputs, self._options, self._drawn_by)
        *outputs, dy = (lowering.slice(x) for x in self.inputs[-1 - self._num_outputs :])
        y, kept, *rounding = outputs
        if rounding:
            y = tf.cast(y, tf.float32) + tf.cast(rounding[0], tf.float32)
        lowered = attention_blockwise if self._options.is_blockwise else attention_dense
        kept = tf.reshape(kept, [*part.q.shape[:3], *kept.shape[self.inputs[0].shape.ndims - 1 :]])
        grads = lowered.backward(
            part.q,
            part.k,
            part.v,
            part.with_one_batch(y),
            kept,
            part.with_one_batch(dy),
            part.terms,
        )
        mesh_impl = lowering.mesh_impl(self)
        q, *memory = self.outputs[:3]
        d_q = tf.reshape(grads.q * part.scale, mesh_impl.slice_shape(q.shape))
        lowering.set_slice(q, d_q)
        for output, d in zip(memory, (grads.k, grads.v), strict=True):
            d, axes = part.restored(d)
            d = tf.reshape(d, mesh_impl.slice_shape(output.shape))
            lowering.set_sum_over_axes(output, d, axes)
        if part.terms.bias is not None:
            table = self.outputs[3]
            by_table = tf.cast(part.terms.bias.gradient_by_table(grads.bias), table.dtype)
            summed = [dim for dim in q.shape.dims[:-1] if dim not in table.shape.dims]
            lowering.set_partial_sum(table, by_table, summed)


class _Part:
    """What one processor attends with.

    Where the memory is split, all of it is gathered (context parallelism): A. Grattafiori et al.,
    "The Llama 3 Herd of Models" (arXiv:2407.21783), section 3.3.2. With positions counted in the
    whole length, its own queries then see what they would see on one device.

    Attributes:
      q: its slice, scaled by 1 / sqrt(d_kv), with one batch dimension: [batch, heads, queries,
        d_kv].
      k, v: [batch, kv_heads, memory, d_kv], the heads that those of q need, and the whole memory.
      scale: what q is scaled by.
      terms: mask, bias and dropout.
    """

    def __init__(
        self, lowering: Lowering, inputs: Sequence[mtf.Tensor], options: Options, drawn_by: str
    ) -> None:
        q, k, v = inputs[:3]
        heads, length, d_kv = q.shape.dims[-3:]
        kv_heads, memory, _ = k.shape.dims[-3:]
        mesh_impl = lowering.mesh_impl(q)
        length_axis, memory_axis = (
            mesh_impl.tensor_dimension_to_mesh_axis(dim) for dim in (length, memory)
        )
        self._shared = SharedHeads(mesh_impl, heads, kv_heads)
        self._memory = Gathered(mesh_impl, memory_axis, 2)
        # Over which the queries of a key are spread.
        self._summed = {*self._shared.axes, length_axis} - {None}
        q_slice = self.with_one_batch(lowering.slice(q))
        # Not a scalar, which TensorFlow would move behind the product with k and fuse with that and
        # with a mask, for which oneDNN has but its slow reference kernel.
        self.scale = tf.constant([d_kv.size**-0.5] * d_kv.size, q.dtype)
        self.q = q_slice * self.scale
        self.k, self.v = (
            self._shared.select(self._memory.whole(self.with_one_batch(lowering.slice(x))))
            for x in (k, v)
        )
        extras = dict(zip(options.extras, inputs[3:], strict=False))
        queries = _queries(mesh_impl, length, length_axis)
        segments = memory_segments = None
        if "segments" in extras:
            segments = _rows(lowering.slice(extras["segments"]))
            # The same tensor twice is not given twice.
            memory_segments = _whole_rows(
                lowering, extras.get("memory_segments", extras["segments"])
            )
        mask = Mask(
            queries,
            memory.size,
            causal=options.causal,
            window=options.window,
            memory_stride=options.memory_stride,
            segments=segments,
            memory_segments=memory_segments,
            # Where a query's segment is the memory's at its place, it sees itself.
            may_be_blind="memory_segments" in extras or options.memory_stride > 1,
        )
        bias = dropout = None
        if "bias_table" in extras:
            sizes = (queries.size, memory.size)
            if options.is_blockwise:
                sizes = attention_blockwise.covered(*sizes)
            bias = Bias(
                lowering.slice(extras["bias_table"]),
                queries.begins[-1] + sizes[0],
                sizes[1],
                max_distance=options.max_distance,
                both_ways=not options.causal,
            )
        if options.dropout_rate:
            dropout = _dropout(lowering, q, memory.size, options.dropout_rate, drawn_by)
        self.terms = Terms(mask, bias, dropout)

    @staticmethod
    def with_one_batch(x: tf.Tensor) -> tf.Tensor:
        """[batch..., heads, length, d] -> [batch, heads, length, d]."""
        return tf.reshape(x, [-1, *x.shape[-3:]])

    def restored(self, dx: tf.Tensor) -> tuple[tf.Tensor, list[int]]:
        """The gradient by `k` or `v` here -> what this processor adds to that by its slice of the
        input, and the mesh axes over which that is still to be summed up."""
        dx = self._memory.own_part(self._shared.restore(dx, self._summed), self._summed)
        return dx, sorted(self._summed - {self._memory.axis, self._shared.gathered.axis})


def _queries(mesh_impl: SpmdMeshImpl, length: mtf.Dimension, axis: int | None) -> Queries:
    """Those of this processor, where a mesh axis splits the length."""
    if axis is None:
        return Queries(length.size)
    slices = mesh_impl.shape[axis].size
    return Queries(length.size // slices, slices, mesh_impl.collectives.coordinate(axis))


def _rows(segments: tf.Tensor) -> tf.Tensor:
    """[batch..., length] -> [batch, length]."""
    return tf.reshape(segments, [-1, segments.shape[-1]])


def _whole_rows(lowering: Lowering, segments: mtf.Tensor) -> tf.Tensor:
    """The same, gathered along the length, by the first layer for all of them."""
    mesh_impl = lowering.mesh_impl(segments)
    axis = mesh_impl.tensor_dimension_to_mesh_axis(segments.shape.dims[-1])
    gathered = Gathered(mesh_impl, axis, 1)
    return lowering.shared(
        (segments, "whole rows"), lambda: gathered.whole(_rows(lowering.slice(segments)))
    )


def _dropout(
    lowering: Lowering, q: mtf.Tensor, memory_length: int, rate: float, drawn_by: str
) -> Dropout:
    """Dropout by the place in [batch..., heads, length, memory] of the global tensors."""
    halves = lowering.random_bits(drawn_by, mtf.Shape([mtf.Dimension("halves_of_a_key", 2)]))
    rows_shape = mtf.Shape(q.shape.dims[:-2])
    rows = lowering.element_index(rows_shape)
    key = tf.bitwise.bitwise_or(tf.bitcast(halves, tf.uint64), tf.constant(1, tf.uint64))
    return Dropout(
        key,
        tf.reshape(rows, [-1, rows.shape[-1]]),
        q.shape.dims[-2].size,
        memory_length,
        rate,
    )
