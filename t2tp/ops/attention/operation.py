"""The attention operation and its gradient, lowered for a processor's slices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.head_tail import CONSECUTIVE, Order
from t2tp.lowering.mesh_impl import SpmdMeshImpl
from t2tp.lowering.operation import GradientOperation, Operation, dims_of
from t2tp.lowering.signature import ALL, Signature
from t2tp.lowering.slice_shapes import reshaped
from t2tp.mesh.collectives import head_and_tail
from t2tp.mesh.layout import Layout
from t2tp.mesh.layout_conflicts import VECTOR
from t2tp.ops.attention import blockwise, cudnn, dense, ring
from t2tp.ops.attention.blocks import KeyRange, Queries
from t2tp.ops.attention.mask import Mask
from t2tp.ops.attention.relative_bias import Bias
from t2tp.ops.attention.score_terms import Gradients, ScoreTerms
from t2tp.ops.attention.shared_heads import GatheredDimension, GatheredMemory, SharedHeads, own_axes
from t2tp.ops.attention.weight_dropout import AttentionDropout, PairIndex

# Names of the inputs that have a gradient, besides q, k and v.
_TRAINED = ("bias_table", "sinks")


@dataclass(frozen=True)
class Options:
    """Options of both passes; see `attention`.

    Attributes:
      method: `dense`, `blockwise` or `ring`.
      extras: names of the inputs after q, k and v: `segments`, `memory_segments`, `bias_table`,
        `sinks`.
      has_other_values: whether values have another size than keys.
    """

    causal: bool
    window: int | None
    max_distance: int
    dropout_rate: float
    method: str
    extras: tuple[str, ...]
    soft_cap: float = 0.0
    has_other_values: bool = False
    block_size: int | None = None

    @property
    def is_blockwise(self) -> bool:
        """Whether scores are computed block by block and not saved."""
        return self.method != "dense"

    @property
    def suits_cudnn(self) -> bool:
        """Whether cuDNN's kernels support these options.

        The kernels compute a mask and a softmax, and nothing else. With `memory_segments` a query
        may have no visible key, which the kernels do not support.
        """
        has_other_terms = {"bias_table", "memory_segments", "sinks"} & {*self.extras}
        is_plain = not (has_other_terms or self.soft_cap or self.has_other_values)
        return self.method == "blockwise" and not self.dropout_rate and is_plain

    @property
    def is_balanced_by_order(self) -> bool:
        """Whether head-tail order of the queries is needed to give all processors equal work.

        With a window, and in dense attention, any order gives equal work.
        """
        return self.is_blockwise and self.causal and self.window is None


class AttentionOperation(Operation):
    """Computes attention.

    Inputs: q [batch..., heads, length, d_kv], k [batch..., kv_heads, memory, d_kv], v [batch...,
      kv_heads, memory, d_v], extras.

    Outputs: the result [batch..., heads, length, d_v], and the activations saved for the backward
    pass. Blockwise attention saves the log of each query's sum of exponentials [batch..., heads,
    length], and with 16-bit floats the rounding error of the result. Dense attention saves the
    weights [batch..., heads, length, memory], and never splits their memory dimension.
    """

    def __init__(self, inputs: Sequence[upstream.Tensor], options: Options) -> None:
        super().__init__(list(inputs), name="attention")
        self._options = options
        self.chooses_orders = options.is_blockwise
        if options.suits_cudnn:
            self.segments = dict(zip(options.extras, inputs[3:], strict=True)).get("segments")
        q, k, v = inputs[:3]
        *batch, heads, length, _ = q.shape.dims
        result = upstream.Shape([*batch, heads, length, v.shape.dims[-1]])
        kv_heads, memory, _ = k.shape.dims[-3:]
        if options.is_blockwise:
            saved_output = upstream.Shape([*batch, heads, length]), tf.float32
        else:
            # The space in the name keeps layout rules from matching it.
            whole_memory = upstream.Dimension(f"whole {memory.name}", memory.size)
            saved_output = upstream.Shape([*batch, heads, length, whole_memory]), q.dtype
        outputs = [(result, q.dtype), saved_output]
        if options.is_blockwise and q.dtype.size < 4:
            outputs.append((result, q.dtype))
        self.set_outputs(*outputs)
        # An output lacks `kv_heads`, but is no sum over it: a query reads one kv head.
        whole = {*dims_of(self)} - {*batch, heads, kv_heads, length, memory}
        self.signature = Signature(ordered=ALL, whole=whole, cost="attention")

    @property
    def matmul_flops(self) -> int:
        """The FLOPs of scores and weighted values, including the causally masked scores."""
        memory = self.inputs[1].shape.dims[-2].size
        size = self.inputs[0].shape.size + self.outputs[0].shape.size
        return 2 * size * min(memory, self._options.window or memory)

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor | None]:
        names = self._options.extras
        trained = [name for name in _TRAINED if name in names]
        # The gradient of the bias table is a sum over the batch. `lower` adds it up in the parts of
        # `exact_sums`.
        has_parts = "sinks" not in trained and self.inputs[0].shape.dims[0].name == "batch"
        backward = AttentionGradOperation(
            "attention_grad",
            self,
            [*self.inputs, *self.outputs, grad_ys[0]],
            *self.inputs[:3],
            *(self.inputs[3 + names.index(name)] for name in trained),
            combined=() if has_parts or not trained else ALL,
            whole=(),
            cost="attention_grad",
        )
        backward.chooses_orders = self.chooses_orders
        backward.rng_dependency = self.rng_dependency
        extras: dict[str, upstream.Tensor | None] = dict.fromkeys(names)
        extras |= zip(trained, backward.outputs[3:], strict=True)
        return [*backward.outputs[:3], *extras.values()]

    def is_local(self, layout: Layout) -> bool:
        """Whether processors have all keys of their queries, and sum no gradient over axes."""
        (heads, length, _), (kv_heads, memory, _) = (x.shape.dims[-3:] for x in self.inputs[:2])
        heads_axis, length_axis, kv_heads_axis, memory_axis = (
            layout.axis_index(dim.name) for dim in (heads, length, kv_heads, memory)
        )
        is_whole = length_axis is None and memory_axis is None and heads_axis == kv_heads_axis
        return is_whole and not {*_TRAINED} & {*self._options.extras}

    def check_layout(self, layout: Layout) -> None:
        """Rejects layouts for which attention has no exact sums."""
        lengths = [x.shape.dims[-2].name for x in self.inputs[:2]]
        is_split = any(layout.axis_index(name) is not None for name in lengths)
        has_terms = self._options.is_blockwise or {*_TRAINED} & {*self._options.extras}
        if layout.exact_sums and is_split and has_terms:
            raise layout.inexact(
                self.name,
                f"with {lengths[0]!r} split needs attention_method=dense (the default up to 1,024"
                " tokens) without relative positions and sinks: drop the rule of"
                f" {lengths[0]!r}",
            )
        shape = upstream.Shape(self.inputs[1].shape.dims[:-2])
        if layout.exact_sums and math.prod(layout.slice_size(shape)) == 1:
            raise layout.inexact(
                self.name, "needs at least two rows or heads of keys on each processor: split less"
            )

    def head_tail_dims(self, layout: Layout) -> Sequence[upstream.Dimension]:
        length, memory = (x.shape.dims[-2] for x in self.inputs[:2])
        if not self._options.is_balanced_by_order:
            return ()
        is_split_alike = layout.axis_index(length.name) == layout.axis_index(memory.name)
        return (length, memory) if is_split_alike else (length,)

    def lower(self, lowering: Lowering) -> None:
        part = _AttentionSlice(lowering, self, self.inputs)
        computed = part.method.forward(part.qs, part.memory, part.terms)
        for output, parts in zip(self.outputs, zip(*computed, strict=True), strict=True):
            sizes = lowering.mesh_impl(self).slice_shape(output.shape)
            lowering.set_slice(output, reshaped(_joined(parts), sizes))
            lowering.orders.set(output, part.order)


class AttentionGradOperation(GradientOperation):
    """Computes the gradient of attention.

    Inputs: the inputs and outputs of attention, and the gradient w.r.t. the result.
    Outputs: the gradients w.r.t. q, k, v and, if they are inputs, the bias table and the sinks.
    """

    def is_local(self, layout: Layout) -> bool:
        return self.forward.is_local(layout)

    def check_layout(self, layout: Layout) -> None:
        """Rejects layouts and lengths that `exact_sums` does not support.

        The gradient of a kv head must not be a sum over processors. With a relative bias, lengths
        must be multiples of the CPU's vector size.
        """
        heads, kv_heads = (x.shape.dims[-3].name for x in self.inputs[:2])
        lengths = [x.shape.dims[-2].size for x in self.inputs[:2]]
        is_odd = any(length % VECTOR for length in lengths)
        if layout.exact_sums and "bias_table" in self.forward._options.extras and is_odd:
            raise layout.inexact(
                self.name,
                f"with position=relative needs lengths of a multiple of {VECTOR}, not"
                f" {max(lengths)}: change max_length",
            )
        if layout.exact_sums and layout.axis_index(heads) != layout.axis_index(kv_heads):
            raise layout.inexact(
                self.name,
                f"needs {heads!r} and {kv_heads!r} split over the same axis: add the rule that is"
                " missing",
            )

    def lower(self, lowering: Lowering) -> None:
        options: Options = self.forward._options
        part = _AttentionSlice(lowering, self.forward, self.inputs)
        results = self.inputs[-1 - len(self.forward.outputs) :]
        *outputs, dy = (lowering.slice_in_order(x, part.order) for x in results)
        y, saved, *rounding = outputs
        if rounding and part.method is not cudnn:
            y = tf.cast(y, tf.float32) + tf.cast(rounding[0], tf.float32)
        y, dy = part.with_one_batch(y), part.with_one_batch(dy)
        saved = reshaped(saved, [*y.shape[:3], *saved.shape[self.inputs[0].shape.ndims - 1 :]])
        # Blockwise backward passes read `y` only as the mean weight gradient, which is smaller.
        y_term = y
        if options.is_blockwise and part.method is not cudnn:
            y_term = blockwise.mean_weight_gradient(y, dy)
        by_query = [*zip(part.qs, *(part.cut(x) for x in (y_term, saved, dy)), strict=True)]
        computed, d_memory = part.method.backward(by_query, part.memory, part.terms)
        mesh_impl = lowering.mesh_impl(self)
        q, *memory = self.outputs[:3]
        d_q = _joined([grads.q for grads in computed]) * part.scale
        lowering.set_slice(q, reshaped(d_q, mesh_impl.slice_shape(q.shape)))
        lowering.orders.set(q, part.order)
        for output, d in zip(memory, d_memory, strict=True):
            d, axes = part.gradient_of_slice(tf.cast(d, output.dtype))
            d = reshaped(d, mesh_impl.slice_shape(output.shape))
            lowering.set_sum_over_axes(output, d, axes)
            lowering.orders.set(output, part.memory_order)
        trained = list(self.outputs[3:])
        if part.terms[0].bias is not None:
            self._set_table(lowering, trained.pop(0), part.terms[0].bias, computed)
        sinks = part.terms[0].sinks
        if sinks is not None:
            # The gradient w.r.t. a logit is `weight * (dy * value - mean_weight_gradient)`. The
            # value of a sink is 0.
            if options.is_blockwise:
                weights, mean = tf.exp(sinks[:, None] - saved), y_term
            else:
                weights = 1.0 - tf.reduce_sum(tf.cast(saved, tf.float32), -1)
                mean = blockwise.mean_weight_gradient(y, dy)
            d_sinks = tf.cast(-tf.reduce_sum(weights * mean, [0, 2]), trained[0].dtype)
            lowering.set_partial_sum(trained[0], d_sinks, self._summed)

    @property
    def _summed(self) -> list[upstream.Dimension]:
        """The dimensions of the queries over which the gradient of a head's weight is a sum."""
        *rows, _, length, _ = self.inputs[0].shape.dims
        return [*rows, length]

    def _set_table(
        self, lowering: Lowering, table: upstream.Tensor, bias: Bias, computed: Sequence[Gradients]
    ) -> None:
        """Sets the gradient of the bias table, in parts with `exact_sums`."""
        d_bias = tf.add_n([grads.bias for grads in computed])
        d_table, rows = tf.cast(bias.table_gradient(d_bias), table.dtype), self._summed[:1]
        num_parts, count = lowering.parts_of(rows[0])
        if num_parts > 1:
            parts, axes = tf.split(d_table, count), lowering.mesh_impl(self).axes_of(rows)
            lowering.set_parts(table, parts, axes, (rows[0].name, num_parts))
        else:
            lowering.set_partial_sum(table, d_table, self._summed)


class _AttentionSlice:
    """The slices and score terms of one processor.

    If the memory (keys and values) is split, it is all-gathered: context parallelism (A.
    Grattafiori et al., "The Llama 3 Herd of Models", arXiv:2407.21783, section 3.3.2). With `ring`,
    processors pass slices of the memory on instead. Masks and biases use global positions.

    Attributes:
      qs: the parts of the queries that the processor computes, scaled by 1 / sqrt(d_kv), with one
        batch dimension: [batch, heads, queries, d_kv].
      method: the module that computes the attention: `dense`, `blockwise`, `ring` or `cudnn`.
      memory: an argument of the module's functions: keys and values of the full memory (see
        `GatheredMemory`), for `cudnn` also how the program is compiled; or a `Ring`.
      order: order of the queries, and of all other tensors with their length dimension. A slice in
        head-tail order consists of two parts.
      memory_order: order of k and v, and of their gradients.
    """

    def __init__(
        self, lowering: Lowering, op: AttentionOperation, inputs: Sequence[upstream.Tensor]
    ) -> None:
        """Prepares `op`, or its gradient with `inputs` that begin with the inputs of `op`."""
        (q, k), options = inputs[:2], op._options
        heads, length, d_kv = q.shape.dims[-3:]
        kv_heads, memory, _ = k.shape.dims[-3:]
        self._lowering, self._options, self._rng_name = lowering, options, op.name
        self._mesh_impl = mesh_impl = lowering.mesh_impl(q)
        self._q, *self._k_and_v = inputs[:3]
        self._extras = dict(zip(options.extras, inputs[3:], strict=False))
        # `memory_segments` is not an input if it equals `segments`.
        self._of_memory = self._extras.get("memory_segments", self._extras.get("segments"))
        self._length_axis, self._memory_axis = (
            mesh_impl.tensor_dimension_to_mesh_axis(dim) for dim in (length, memory)
        )
        self._shared = SharedHeads(mesh_impl, heads, kv_heads)
        self._memory = GatheredDimension(mesh_impl, self._memory_axis)
        # The queries that attend to a key are split over these mesh axes, so the gradient of the
        # key is a sum over these axes.
        self._summed = {*self._shared.axes, *own_axes(mesh_impl, self._length_axis)}
        # A vector, because TensorFlow would move a scalar factor behind the matmul with k and fuse
        # factor, matmul and mask. For this fused operation oneDNN has only a slow reference kernel.
        self.scale = tf.constant([d_kv.size**-0.5] * d_kv.size, q.dtype)
        self.order = _order(lowering, q, options)
        self._queries = _queries(mesh_impl, length, self.order)
        self.qs = lowering.shared(
            ("scaled", q, self.order, options),
            lambda: self.cut(
                self.with_one_batch(lowering.slice_in_order(q, self.order)) * self.scale
            ),
        )
        self._rows = self.qs[0].shape[0] * self.qs[0].shape[1]
        self._gathered: GatheredMemory | None = None
        self.method: ModuleType
        self.memory: Any
        uses_ring = options.method == "ring" and self._goes_round()
        masks, key_block = self._pass_memory_on() if uses_ring else self._gather_memory()
        self.terms = self._score_terms(masks, key_block)

    def _pass_memory_on(self) -> tuple[list[Mask], int]:
        """Makes the ring; returns the masks of its first step, and the size of a block of keys."""
        k, axis = self._k_and_v[0], self._memory_axis
        assert axis is not None
        has_halves = self._mesh_impl.slice_shape(k.shape)[-2] % 2 == 0
        is_head_tail = bool(self.order) and self._length_axis == axis and has_halves
        self.memory_order = self.order if is_head_tail else CONSECUTIVE
        k_slice, v_slice = map(self._shared.select, self._memory_slices())
        segments = self._of_memory
        own_segments = () if segments is None else (self._segments_of_slice(segments, axis),)
        own = ring.Visiting((k_slice, v_slice), own_segments)
        part_size = k_slice.shape[2] // (2 if is_head_tail else 1)
        key_block = blockwise.key_block_of(part_size, self._rows, self._options.block_size)
        self.method = ring
        self.memory = ring.Ring(self._mesh_impl, axis, own, part_size, key_block)
        return self._masks(KeyRange(part_size)), key_block

    def _gather_memory(self) -> tuple[list[Mask], int]:
        """Gathers the memory; returns the masks, and the size of a block of keys; 0: no blocks."""
        lowering, options, mesh_impl = self._lowering, self._options, self._mesh_impl
        k, segments = self._k_and_v[0], self._extras.get("segments")
        length, (memory, d_kv) = self._q.shape.dims[-2], k.shape.dims[-2:]
        self.memory_order = lowering.orders.of(k) & {self._memory_axis}
        is_whole = not self.memory_order and not own_axes(mesh_impl, self._length_axis)
        target, key_block = None, 0
        if is_whole and options.suits_cudnn:
            target = cudnn.usable(mesh_impl.target, self._q.dtype, d_kv.size)
        if target:
            self.method = cudnn
        elif options.is_blockwise:
            self.method = blockwise
            key_block = blockwise.key_block_of(memory.size, self._rows, options.block_size)
        else:
            self.method = dense
        is_head_tail = bool(self.memory_order)
        self._gathered = gathered = GatheredMemory(
            self._shared, self._memory, memory.size, key_block, is_head_tail=is_head_tail
        )
        k_and_v = [gathered.of_slice(x) for x in self._memory_slices()]
        self.memory = (*k_and_v, target) if target else k_and_v
        # Layers with equal masks share the mask tensors.
        orders = (self.order, self.memory_order)
        masks = lowering.shared(
            ("masks", options, length, memory, *orders, segments, self._of_memory),
            lambda: self._masks(gathered.keys, self._of_memory),
        )
        if target:
            self.qs = lowering.shared(
                ("guarded", self._q, segments, options),
                lambda: [cudnn.guarded(self.qs[0], masks[0])],
            )
        return masks, key_block

    def _score_terms(self, masks: Sequence[Mask], key_block: int) -> list[ScoreTerms]:
        """Returns the terms of each part of the queries."""
        lowering, options, extras = self._lowering, self._options, self._extras
        rows, length = self._q.shape.dims[0], self._q.shape.dims[-2]
        memory_length = self._k_and_v[0].shape.dims[-2].size
        queries, keys = masks[0].queries, masks[0].keys
        query_block = blockwise.query_block_of(queries.size, options.block_size)
        bias = dropout = sinks = None
        if "bias_table" in extras:
            sizes = (queries.size, keys.size)
            if options.is_blockwise:
                sizes = (sizes[0] + -sizes[0] % query_block, sizes[1] + -sizes[1] % key_block)
            bias = Bias(
                lowering.slice(extras["bias_table"]),
                queries.offsets[-1] + sizes[0],
                memory_length - keys.size + sizes[1],
                max_distance=options.max_distance,
                both_ways=not options.causal,
                parts=lowering.parts_of(rows)[1],
            )
        if options.dropout_rate:
            dropout = self._dropout(masks[0])
        if "sinks" in extras:
            sinks = tf.cast(lowering.slice(extras["sinks"]), tf.float32)
        exact, parts = bool(self._mesh_impl.layout.exact_sums), lowering.parts_of(length)[1]
        return [
            ScoreTerms(mask, bias, dropout, query_block, options.soft_cap, sinks, exact, parts)
            for mask in masks
        ]

    def _masks(self, keys: KeyRange, of_memory: upstream.Tensor | None = None) -> list[Mask]:
        """Returns one mask per part of the queries; `of_memory` has the segments of the keys."""
        lowering, options, extras = self._lowering, self._options, self._extras
        own_segments: list[tf.Tensor | None] = [None] * len(self._queries)
        if "segments" in extras:
            rows = _rows(lowering.slice_in_order(extras["segments"], self.order))
            own_segments = [*self.cut(rows, dim=1)]
        return [
            Mask(
                queries,
                keys,
                causal=options.causal,
                window=options.window,
                segments=segments,
                memory_segments=None if of_memory is None else _whole_rows(lowering, of_memory),
                # With the same segments for queries and memory, a query attends at least to itself.
                may_be_blind="memory_segments" in extras,
                max_segments=self._mesh_impl.target.max_segments,
            )
            for queries, segments in zip(self._queries, own_segments, strict=True)
        ]

    @staticmethod
    def with_one_batch(x: tf.Tensor) -> tf.Tensor:
        """Merges batch dimensions: [batch..., heads, length, d] -> [batch, heads, length, d]."""
        return reshaped(x, [-1, *x.shape[-3:]])

    def cut(self, x: tf.Tensor, dim: int = 2) -> list[tf.Tensor]:
        """Splits the slice of the queries into parts along the positions, dimension `dim`."""
        return tf.split(x, len(self._queries), dim) if len(self._queries) > 1 else [x]

    def _memory_slices(self) -> list[tf.Tensor]:
        slices = [self._lowering.slice_in_order(x, self.memory_order) for x in self._k_and_v]
        return [self.with_one_batch(x) for x in slices]

    def _segments_of_slice(self, segments: upstream.Tensor, axis: int) -> tf.Tensor:
        """Returns the segments [batch, keys] of the slice of k and v, which `axis` splits."""
        lowering = self._lowering
        if self._mesh_impl.tensor_dimension_to_mesh_axis(segments.shape.dims[-1]) == axis:
            return _rows(lowering.slice_in_order(segments, self.memory_order))
        # The segments are split like the queries, and the memory is split over another axis. So
        # neither is in head-tail order, which needs one axis that splits both.
        rows = _whole_rows(lowering, segments)
        size = rows.shape[1] // self._mesh_impl.shape[axis].size
        begin = self._mesh_impl.collectives.coordinate(axis) * size
        return tf.slice(rows, [0, begin], [rows.shape[0], size])

    def gradient_of_slice(self, dx: tf.Tensor) -> tuple[tf.Tensor, list[int]]:
        """Returns a partial sum of the gradient of a slice, and the mesh axes to sum over."""
        dx = (self._gathered or self._shared).restore(dx, self._summed)
        return dx, sorted(self._summed - {*self._memory.axes, *self._shared.gathered.axes})

    def _goes_round(self) -> bool:
        """Whether the axes that split the memory also split the queries.

        Otherwise several processors have the same queries. A ring would make each of them compute
        the same scores.
        """
        axes = [axis for axis in self._memory.axes if self._mesh_impl.shape[axis].size > 1]
        return bool(axes) and set(axes) <= {*own_axes(self._mesh_impl, self._length_axis)}

    def _dropout(self, mask: Mask) -> AttentionDropout:
        """Returns dropout that depends on each weight's index in the global tensor."""
        lowering, options, name = self._lowering, self._options, self._rng_name
        *rows, length = self._q.shape.dims[:-1]
        memory_length = self._k_and_v[0].shape.dims[-2].size
        identity = (options, *rows, length, memory_length)

        def make_index() -> PairIndex:
            index = lowering.element_index(upstream.Shape(rows))
            return PairIndex(
                reshaped(index, [-1, index.shape[-1]]),
                length.size,
                memory_length,
                mask.whole,
                may_begin_odd=mask.keys.size % 2 > 0,
            )

        def make_dropout() -> AttentionDropout:
            halves = upstream.Shape([upstream.Dimension("halves_of_a_key", 2)])
            key = tf.bitcast(lowering.random_bits(name, halves), tf.uint64)
            key = tf.bitwise.bitwise_or(key, tf.constant(1, tf.uint64))
            index = lowering.shared(("pairs", *identity), make_index)
            xla = self._mesh_impl.target.uses_xla
            return AttentionDropout(key, index, options.dropout_rate, xla=xla)

        return lowering.shared_random(("attention dropout", name, *identity), make_dropout)


def _order(lowering: Lowering, q: upstream.Tensor, options: Options) -> Order:
    """Returns the order in which to compute queries; head-tail order only if it saves time."""
    mesh_impl = lowering.mesh_impl(q)
    length = q.shape.dims[-2]
    axis = mesh_impl.tensor_dimension_to_mesh_axis(length)
    if axis is None or not options.is_blockwise:
        return CONSECUTIVE
    if options.is_balanced_by_order and lowering.orders.has_halves(axis, length):
        return frozenset([axis])
    return lowering.orders.of(q) & {axis}


def _queries(mesh_impl: SpmdMeshImpl, length: upstream.Dimension, order: Order) -> list[Queries]:
    """Returns the queries that a processor computes: one part, or two in head-tail order."""
    axis = mesh_impl.tensor_dimension_to_mesh_axis(length)
    if axis is None:
        return [Queries(length.size)]
    slices, place = mesh_impl.shape[axis].size, mesh_impl.collectives.coordinate(axis)
    if axis not in order:
        return [Queries(length.size // slices, slices, place)]
    size = length.size // (2 * slices)
    return [Queries(size, 2 * slices, half) for half in head_and_tail(place, slices)]


def _joined(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Joins the parts of the queries to a slice [batch, heads, length, ...]."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, 2)


def _rows(segments: tf.Tensor) -> tf.Tensor:
    """Merges batch dimensions: [batch..., length] -> [batch, length]."""
    return reshaped(segments, [-1, segments.shape[-1]])


def _whole_rows(lowering: Lowering, segments: upstream.Tensor) -> tf.Tensor:
    """Gathers segments [batch, length] along the length, once for all layers."""
    mesh_impl = lowering.mesh_impl(segments)
    axis = mesh_impl.tensor_dimension_to_mesh_axis(segments.shape.dims[-1])
    gathered = GatheredDimension(mesh_impl, axis)
    return lowering.shared(
        (segments, "whole rows"), lambda: gathered.whole(_rows(lowering.slice(segments)), 1)
    )
