"""Scaled dot-product attention."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from t2tp import upstream
from t2tp.hparam_limits import Limits
from t2tp.ops.attention import cudnn
from t2tp.ops.attention.operation import AttentionOperation, Options

AttentionMethod: TypeAlias = Literal["dense", "blockwise", "ring"]

# If a head has more scores than this, blockwise attention is faster (measured on CPUs).
_LARGEST_DENSE = 1024 * 1024


@dataclass(frozen=True)
class RelativeBias:
    """A learned bias per head and distance bucket, added to the scores.

    C. Raffel et al. (T5, arXiv:1910.10683), section 2.1. Causal attention uses all buckets for
    earlier positions. Other attention uses half of the buckets for earlier and half for later
    positions.

    Attributes:
      table: [heads, buckets].
      max_distance: all distances of at least this value share the last bucket.
    """

    table: upstream.Tensor
    max_distance: int = 128


def attention(
    q: upstream.Tensor,
    k: upstream.Tensor,
    v: upstream.Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    segments: upstream.Tensor | None = None,
    memory_segments: upstream.Tensor | None = None,
    relative_bias: RelativeBias | None = None,
    soft_cap: float = 0.0,
    sinks: upstream.Tensor | None = None,
    dropout_rate: float = 0.0,
    method: AttentionMethod | None = None,
    block_size: int | None = None,
) -> upstream.Tensor:
    """Averages the values for each query, weighted by `softmax(q * k / sqrt(d_kv))`.

    A. Vaswani et al., "Attention Is All You Need" (arXiv:1706.03762), section 3.2.1. The softmax is
    in float32. A query that attends to nothing gives zeros.

    The *memory* is the sequence of keys and values. Batch dimensions, `heads`, `kv_heads`, `length`
    and `memory_length` may be split. If `kv_heads` is split like `heads` and the memory is not
    split, no collectives are needed. If the memory is split, the forward and the backward pass
    all-gather its keys and values. If `length` is split too, this is context parallelism (A.
    Grattafiori et al., "The Llama 3 Herd of Models", arXiv:2407.21783, section 3.3.2). As in Llama
    3, causal blockwise attention gives all processors equal work. With the method `ring`, each
    processor sends its keys and values on to the next processor instead (H. Liu et al., "Ring
    Attention with Blockwise Transformers for Near-Infinite Context", arXiv:2310.01889).

    Args:
      q: [batch..., heads, length, d_kv].
      k: [batch..., kv_heads, memory_length, d_kv]. `kv_heads` may be `heads` itself. Otherwise its
        size divides the size of `heads`, and consecutive heads share a kv head. `memory_length`
        may be `length` itself.
      v: [batch..., kv_heads, memory_length, d_v]. `d_v` may be `d_kv` itself.
      causal: whether each position attends only to itself and earlier positions.
      window: a query attends to its own position and `window - 1` earlier positions. Without
        `causal` it also attends to `window - 1` later positions.
      segments: integers [batch..., length]. Positions attend within their segment.
      memory_segments: segments of the memory, [batch..., memory_length]. Default: `segments`.
      relative_bias: a bias by distance.
      soft_cap: scores become `soft_cap * tanh(score / soft_cap)` (M. Rivière et al., "Gemma 2",
        arXiv:2408.00118, section 2); 0: no cap.
      sinks: [heads], one more logit per head in the softmax, without a value, as in gpt-oss (G.
        Xiao et al., arXiv:2309.17453, section 3.3).
      dropout_rate: the fraction of the weights to drop, in [0, 1), rounded to a multiple of 2**-16.
        The mask depends on the seed, the step and the index in the global tensor, not on the mesh.
      method: `dense` stores all scores. `blockwise` stores one block of scores at a time and
        recomputes the scores in the backward pass. `ring` is `blockwise` for a memory that is split
        like `length`: a processor holds only two slices of it at a time. The three methods have the
        same dropout mask, and their results are equal up to rounding. Default: the faster of
        `dense` and `blockwise` for these lengths. On GPUs, `blockwise` attention of 16-bit floats
        runs on cuDNN's kernels if it needs only a mask and a softmax.
      block_size: number of queries, and of keys, in a block of scores: an even number. cuDNN's
        kernels ignore it. Default: sizes that are fast on CPUs.

    Returns:
      [batch..., heads, length, d_v].

    Raises:
      ValueError: shapes do not match, or an option is out of range.
      LayoutError: (when the program is built) the layout splits `d_kv`, `d_v` or the buckets of the
        bias.
    """
    if q.shape.ndims < 3 or k.shape.ndims < 3:
        raise ValueError(
            f"attention: q {q.shape} must be [batch..., heads, length, d_kv], and k {k.shape}"
            f" [batch..., kv_heads, memory_length, d_kv]."
        )
    check_operands(q, k, v, q.shape.dims[:-3])
    length, memory = q.shape.dims[-2], k.shape.dims[-2]
    if (causal or window is not None) and length.size != memory.size:
        raise ValueError(
            f"attention: causal and window compare positions in q's {length} and k's {memory},"
            " which must have the same size. (Mask a separate memory with segments.)"
        )
    for name, value, limits in (
        ("window", window, Limits(min=1)),
        ("soft_cap", soft_cap, Limits(min=0)),
        ("dropout_rate", dropout_rate, Limits(min=0, below=1)),
        ("method", method, Limits(choices=get_args(AttentionMethod))),
    ):
        limits.check(f"attention: {name}", value)
    if block_size is not None and (block_size < 2 or block_size % 2):
        raise ValueError(f"attention: block_size must be even and above 0, not {block_size}.")
    extras: dict[str, upstream.Tensor] = {}
    if segments is not None or memory_segments is not None:
        extras = _segments(q, k, segments, memory_segments)
    if relative_bias is not None:
        _check_bias(q, relative_bias, causal)
        extras["bias_table"] = relative_bias.table
    if sinks is not None:
        check_sinks(sinks, q.shape.dims[-3])
        extras["sinks"] = sinks
    options = Options(
        causal=causal,
        window=window,
        max_distance=relative_bias.max_distance if relative_bias else 0,
        dropout_rate=dropout_rate,
        method=method or "blockwise",
        extras=tuple(extras),
        soft_cap=soft_cap,
        has_other_values=v.shape != k.shape,
        block_size=block_size,
    )
    has_kernel = options.suits_cudnn and cudnn.takes(q.dtype, q.shape.dims[-1].size)
    if method is None and length.size * memory.size <= _LARGEST_DENSE and not has_kernel:
        options = replace(options, method="dense")
    return AttentionOperation([q, k, v, *extras.values()], options).outputs[0]


def check_operands(
    q: upstream.Tensor, k: upstream.Tensor, v: upstream.Tensor, batch: Sequence[upstream.Dimension]
) -> None:
    """Checks that keys and values fit queries [batch..., heads, ..., d_kv]."""
    if k.shape.dims[:-1] != v.shape.dims[:-1]:
        raise ValueError(
            f"attention: k {k.shape} and v {v.shape} must have the same dimensions except the last."
        )
    if k.shape.dims[:-3] != batch or q.shape.dims[-1] != k.shape.dims[-1]:
        raise ValueError(
            f"attention: q {q.shape} and k {k.shape} must have the same batch dimensions (all of"
            " k's but the last three) and the same last dimension."
        )
    heads, kv_heads = q.shape.dims[len(batch)], k.shape.dims[-3]
    if heads.size % kv_heads.size:
        raise ValueError(
            f"attention: the size of k's {kv_heads} must divide the size of q's {heads}, so that"
            " every kv head serves the same number of heads."
        )
    dtypes = [x.dtype.name for x in (q, k, v)]
    if len(set(dtypes)) > 1:
        raise ValueError(f"attention: q, k and v must have one dtype, not {', '.join(dtypes)}.")


def check_sinks(sinks: upstream.Tensor, heads: upstream.Dimension) -> None:
    """Checks that there is one sink for each head."""
    if sinks.shape.dims != [heads]:
        raise ValueError(f"attention: sinks {sinks.shape} must be [{heads}].")


def _segments(
    q: upstream.Tensor,
    k: upstream.Tensor,
    segments: upstream.Tensor | None,
    memory_segments: upstream.Tensor | None,
) -> dict[str, upstream.Tensor]:
    """Returns `segments` and, if they differ, `memory_segments`, as inputs of the operation."""
    if segments is None:
        raise ValueError("attention: memory_segments need segments, those of the queries.")
    *batch, _, length, _ = q.shape.dims
    if segments.shape.dims != [*batch, length]:
        raise ValueError(f"attention: segments {segments.shape} must be {[*batch, length]}.")
    if memory_segments is None or memory_segments is segments:
        if k.shape.dims[-2].size != length.size:
            raise ValueError(
                f"attention: the memory {k.shape.dims[-2]} is not as long as q's {length}: give"
                " memory_segments."
            )
        return {"segments": segments}
    wanted = [*batch, k.shape.dims[-2]]
    if memory_segments.shape.dims != wanted:
        raise ValueError(f"attention: memory_segments {memory_segments.shape} must be {wanted}.")
    return {"segments": segments, "memory_segments": memory_segments}


def _check_bias(q: upstream.Tensor, bias: RelativeBias, causal: bool) -> None:
    heads = q.shape.dims[-3]
    if bias.table.shape.ndims != 2 or bias.table.shape.dims[0] != heads:
        raise ValueError(
            f"attention: the bias table {bias.table.shape} must be [{heads}, buckets]."
        )
    buckets = bias.table.shape.dims[1]
    exact = buckets.size // (2 if causal else 4)
    if exact < 1:
        raise ValueError(
            f"attention: the bias table's {buckets} must be at least {2 if causal else 4} (T5 has"
            " 32): half of the buckets hold one distance each"
            + ("." if causal else ", earlier or later.")
        )
    if bias.max_distance <= exact:
        raise ValueError(
            f"attention: max_distance {bias.max_distance} must be above {exact}: with {buckets},"
            f" distances below {exact} have a bucket each."
        )
