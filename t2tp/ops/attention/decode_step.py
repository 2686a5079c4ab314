"""Attention in a decode step: one query per row attends to a memory."""

import functools
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation, dims_of
from t2tp.lowering.signature import ALL, Signature
from t2tp.mesh.collectives import Collectives
from t2tp.ops.attention.api import RelativeBias, check_operands, check_sinks
from t2tp.ops.attention.blocks import query_key_scores, weighted_values
from t2tp.ops.attention.mask import MASKED
from t2tp.ops.attention.relative_bias import distance_buckets
from t2tp.ops.attention.score_terms import capped, softmax_with_sinks
from t2tp.ops.attention.shared_heads import SharedHeads

# The global positions of the keys in a processor's slice of the memory: int32 [memory].
Places: TypeAlias = "np.ndarray | tf.Tensor"


def attention_step(
    q: upstream.Tensor,
    k: upstream.Tensor,
    v: upstream.Tensor,
    *,
    positions: upstream.Tensor | None = None,
    window: int | None = None,
    is_seen: upstream.Tensor | None = None,
    relative_bias: RelativeBias | None = None,
    soft_cap: float = 0.0,
    sinks: upstream.Tensor | None = None,
) -> upstream.Tensor:
    """Computes attention of one query per row, without a gradient.

    If the memory is split, each processor attends to its slice, and the partial results are
    all-reduced.

    Args:
      q: [batch..., heads, d_kv].
      k: [batch..., kv_heads, memory_length, d_kv], see `attention`.
      v: [batch..., kv_heads, memory_length, d_v].
      positions: int32 [batch...]. The query attends to keys up to this position. Default: to all.
      window: number of positions that a query attends to, including its own.
      is_seen: booleans [batch..., memory_length]: which keys may be attended to. Default: all.
      relative_bias: a bias by distance, as in causal attention.
      soft_cap: cap of the scores, see `attention`.
      sinks: [heads], see `attention`.

    Returns:
      [batch..., heads, d_v]; zero for a query that may attend to no key.

    Raises:
      ValueError: shapes do not match, or window or bias are given without positions.
    """
    batch = q.shape.dims[:-2]
    check_operands(q, k, v, batch)
    heads, memory = q.shape.dims[-2], k.shape.dims[-2]
    if positions is None and (window is not None or relative_bias is not None):
        raise ValueError("attention_step: a window and a bias need the positions of the queries.")
    if sinks is not None:
        check_sinks(sinks, heads)
    for name, x, dims in (("positions", positions, batch), ("is_seen", is_seen, [*batch, memory])):
        if x is not None and x.shape.dims != dims:
            raise ValueError(f"attention_step: {name} {x.shape} must be {dims}.")
    table = relative_bias.table if relative_bias else None
    max_distance = relative_bias.max_distance if relative_bias else 0
    extras = {"positions": positions, "is_seen": is_seen, "bias_table": table, "sinks": sinks}
    extras = {name: x for name, x in extras.items() if x is not None}
    (y,) = AttentionStepOperation([q, k, v], extras, window, max_distance, soft_cap).outputs
    return y


class AttentionStepOperation(Operation):
    """Inputs: q [batch..., heads, d_kv], k [batch..., kv_heads, memory, d_kv], v, and extras."""

    def __init__(
        self,
        qkv: list[upstream.Tensor],
        extras: dict[str, upstream.Tensor],
        window: int | None,
        max_distance: int,
        soft_cap: float,
    ) -> None:
        """Creates the operation (extras: `positions`, `is_seen`, `bias_table`, `sinks`)."""
        super().__init__([*qkv, *extras.values()], name="attention_step")
        self._extras = tuple(extras)
        self._window = window
        self._max_distance = max_distance
        self._soft_cap = soft_cap
        q, k, v = qkv
        result = upstream.Shape([*q.shape.dims[:-1], v.shape.dims[-1]])
        self.set_outputs((result, q.dtype))
        splittable = {*q.shape.dims[:-1], *k.shape.dims[-3:-1]}
        self.signature = Signature(ordered=ALL, whole={*dims_of(self)} - splittable)

    def lower(self, lowering: Lowering) -> None:
        q, k, v = self.inputs[:3]
        mesh_impl = lowering.mesh_impl(self)
        heads, d_kv = q.shape.dims[-2:]
        kv_heads, memory = k.shape.dims[-3:-1]
        shared = SharedHeads(mesh_impl, heads, kv_heads)
        keys, values = (
            shared.select(tf.reshape(x, [-1, *x.shape[-3:]]))
            for x in (lowering.slice(k), lowering.slice(v))
        )
        scale = tf.constant(d_kv.size**-0.5, q.dtype)
        queries = tf.reshape(lowering.slice(q) * scale, [keys.shape[0], -1, 1, d_kv.size])
        extras = {
            name: lowering.slice(x) for name, x in zip(self._extras, self.inputs[3:], strict=True)
        }
        exact = bool(mesh_impl.layout.exact_sums)
        products = tf.cast(query_key_scores(queries, keys, exact=exact), tf.float32)
        scores = capped(products, self._soft_cap)
        sinks = tf.cast(extras["sinks"], tf.float32) if "sinks" in extras else None
        part = upstream.Shape([memory])
        (begin,) = mesh_impl.slice_begin_tensors(part)
        places = np.arange(mesh_impl.slice_shape(part)[0], dtype=np.int32) + begin
        if "bias_table" in extras:
            table, positions = extras["bias_table"], extras["positions"]
            scores += self._bias(table, positions, places, memory.size)
        # Layers with the same memory share the mask.
        visible = lowering.shared(
            (self._extras, *self.inputs[3:], memory, self._window, "seen"),
            lambda: self._seen(extras, places),
        )
        if visible is not None:
            scores = tf.where(visible, scores, MASKED)
        axis = mesh_impl.tensor_dimension_to_mesh_axis(memory)
        if axis is None:
            weights = softmax_with_sinks(scores, sinks, exact=exact)
            # A query attends at least to its own position, unless `is_seen` hides it.
            if "is_seen" in extras:
                weights = tf.where(visible, weights, 0.0)
            y = weighted_values(tf.cast(weights, q.dtype), values, exact=exact)
        else:
            y = _attended_in_parts(scores, visible, values, sinks, mesh_impl.collectives, axis)
        sizes = mesh_impl.slice_shape(self.outputs[0].shape)
        lowering.set_slice(self.outputs[0], tf.reshape(y, sizes))

    def _seen(self, extras: dict[str, tf.Tensor], places: Places) -> tf.Tensor | None:
        """Returns which keys are visible, booleans [batch, 1, 1, memory]; None: all keys."""
        conditions = []
        if "positions" in extras:
            here = tf.reshape(extras["positions"], [-1, 1, 1, 1])
            conditions.append(places <= here)
            if self._window is not None:
                conditions.append(places > here - self._window)
        if "is_seen" in extras:
            is_seen = extras["is_seen"]
            conditions.append(tf.reshape(is_seen, [-1, 1, 1, is_seen.shape[-1]]))
        return functools.reduce(tf.logical_and, conditions) if conditions else None

    def _bias(
        self, table: tf.Tensor, positions: tf.Tensor, places: Places, length: int
    ) -> tf.Tensor:
        """Returns float32 [batch, heads, 1, memory]."""
        buckets = distance_buckets(
            -np.arange(length), table.shape[1], self._max_distance, both_ways=False
        )
        by_distance = tf.transpose(tf.gather(tf.cast(table, tf.float32), buckets, axis=1))
        back = tf.reshape(positions, [-1, 1]) - places
        bias = tf.gather(by_distance, tf.clip_by_value(back, 0, length - 1))
        return tf.transpose(bias, [0, 2, 1])[:, :, None]


def _attended_in_parts(
    scores: tf.Tensor,
    visible: tf.Tensor | None,
    values: tf.Tensor,
    sinks: tf.Tensor | None,
    collectives: Collectives,
    axis: int,
) -> tf.Tensor:
    """Computes attention to a memory that a mesh axis splits; `scores` are masked.

    Shapes: scores [batch, heads, 1, memory], values [batch, kv_heads, memory, d_v], result [batch,
    heads, 1, d_v].
    """
    highest = tf.reduce_max(scores, -1, keepdims=True)
    highest = collectives.allreduce(highest, [axis], "Max")
    if sinks is not None:
        highest = tf.maximum(highest, sinks[:, None, None])
    weights = tf.exp(scores - highest)
    if visible is not None:
        weights = tf.where(visible, weights, 0.0)
    y = weighted_values(tf.cast(weights, values.dtype), values)
    sums = [tf.cast(y, tf.float32), tf.reduce_sum(weights, -1, keepdims=True)]
    sums = collectives.allreduce(tf.concat(sums, -1), [axis], "Add")
    if sinks is not None:
        at_sink = tf.exp(sinks[:, None, None] - highest)
        sums = tf.concat([sums[..., :-1], sums[..., -1:] + at_sink], -1)
    return tf.cast(tf.math.divide_no_nan(sums[..., :-1], sums[..., -1:]), values.dtype)
