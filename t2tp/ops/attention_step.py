"""Attention of one query a row to a memory: a step of decoding."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.lowering import Lowering
from t2tp.ops.attention import RelativeBias
from t2tp.ops.attention_bias import distance_buckets
from t2tp.ops.attention_block import products, weighted
from t2tp.ops.attention_heads import SharedHeads
from t2tp.ops.attention_mask import MASKED


def attention_step(
    q: mtf.Tensor,
    k: mtf.Tensor,
    v: mtf.Tensor,
    *,
    positions: mtf.Tensor | None = None,
    window: int | None = None,
    memory_stride: int = 1,
    is_seen: mtf.Tensor | None = None,
    relative_bias: RelativeBias | None = None,
) -> mtf.Tensor:
    """What `attention` gives for the query at a position, from a memory that is longer.

    There is no gradient: decoding has none.

    Args:
      q: [batch..., heads, d_kv].
      k: [batch..., kv_heads, memory_length, d_kv], see `attention`.
      v: of the shape of `k`.
      positions: int32 [batch...]: the query sees the memory up to this place; by default all of it.
      window: how many places it sees, its own included.
      memory_stride: how many places each one of the memory stands for; it is seen when all of them
        are.
      is_seen: booleans [batch..., memory_length]: which places count at all.
      relative_bias: a bias by the distance, as in causal attention.

    Returns:
      like `q`; zeros where nothing is seen.

    Raises:
      ValueError: shapes do not fit, or window or bias come without positions.
    """
    batch = q.shape.dims[:-2]
    if k.shape != v.shape or k.shape.dims[:-3] != batch or k.shape.dims[-1] != q.shape.dims[-1]:
        raise ValueError(
            f"attention_step: k {k.shape} and v {v.shape} must be [batch..., kv_heads,"
            f" memory_length, d_kv], with batch and d_kv of q {q.shape}."
        )
    heads, (kv_heads, memory) = q.shape.dims[-2], k.shape.dims[-3:-1]
    if heads.size % kv_heads.size:
        raise ValueError(f"attention_step: the size of {kv_heads} must divide that of {heads}.")
    if positions is None and (window is not None or relative_bias is not None):
        raise ValueError("attention_step: a window and a bias need the positions of the queries.")
    extras = {"positions": positions, "is_seen": is_seen}
    if relative_bias is not None:
        extras["bias_table"] = relative_bias.table
    for name, dims in (("positions", batch), ("is_seen", [*batch, memory])):
        given = extras[name]
        if given is not None and given.shape.dims != dims:
            raise ValueError(f"attention_step: {name} {given.shape} must be {dims}.")
    max_distance = relative_bias.max_distance if relative_bias else 0
    given_extras = {name: x for name, x in extras.items() if x is not None}
    return AttentionStepOperation(
        [q, k, v], given_extras, window, memory_stride, max_distance
    ).outputs[0]


class AttentionStepOperation(mtf.Operation):
    """Inputs q [batch..., heads, d_kv], k and v [batch..., kv_heads, memory, d_kv], and extras."""

    def __init__(
        self,
        qkv: list[mtf.Tensor],
        extras: dict[str, mtf.Tensor],
        window: int | None,
        memory_stride: int,
        max_distance: int,
    ) -> None:
        """Attends; see `attention_step` (extras are `positions`, `is_seen` and `bias_table`)."""
        super().__init__([*qkv, *extras.values()], name="attention_step")
        self._extras = tuple(extras)
        self._window = window
        self._stride = memory_stride
        self._max_distance = max_distance
        q, k, _ = qkv
        self._outputs = [mtf.Tensor(self, q.shape, q.dtype)]
        splittable = [d.name for d in (*q.shape.dims[:-1], k.shape.dims[-3])]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_splittable_and_unsplittable_dims("unsplittable", splittable)
        )

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
        scores = tf.cast(products(queries, keys), tf.float32)
        if "bias_table" in extras:
            scores += self._bias(extras["bias_table"], extras["positions"], memory.size)
        seen = self._seen(extras, memory.size)
        if seen is None:
            weights = tf.nn.softmax(scores)
        else:
            weights = tf.nn.softmax(tf.where(seen, scores, MASKED))
            weights = tf.where(seen, weights, 0.0)
        y = weighted(tf.cast(weights, q.dtype), values)
        lowering.set_slice(self.outputs[0], tf.reshape(y, mesh_impl.slice_shape(q.shape)))

    def _seen(self, extras: dict[str, tf.Tensor], length: int) -> tf.Tensor | None:
        """Booleans [batch, 1, 1, memory]; None: everything is seen."""
        conditions = []
        if "positions" in extras:
            here = tf.reshape(extras["positions"], [-1, 1, 1, 1])
            last = np.arange(length, dtype=np.int32) * self._stride + self._stride - 1
            conditions.append(last <= here)
            if self._window is not None:
                conditions.append(last > here - self._window)
        if "is_seen" in extras:
            conditions.append(tf.reshape(extras["is_seen"], [-1, 1, 1, length]))
        if not conditions:
            return None
        seen = conditions[0]
        for condition in conditions[1:]:
            seen = tf.logical_and(seen, condition)
        return seen

    def _bias(self, table: tf.Tensor, positions: tf.Tensor, length: int) -> tf.Tensor:
        """Float32 [batch, heads, 1, memory]."""
        buckets = distance_buckets(
            -np.arange(length), table.shape[1], self._max_distance, both_ways=False
        )
        by_distance = tf.transpose(tf.gather(tf.cast(table, tf.float32), buckets, axis=1))
        back = tf.reshape(positions, [-1, 1]) - np.arange(length, dtype=np.int32)
        bias = tf.gather(by_distance, tf.clip_by_value(back, 0, length - 1))
        return tf.transpose(bias, [0, 2, 1])[:, :, None]
