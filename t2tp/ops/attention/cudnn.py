"""cuDNN's fused attention kernels for 16-bit floats on GPUs.

The kernels never write the scores to memory (J. Shah et al., "FlashAttention-3", arXiv:2407.08608).
They are custom calls of XLA, so they run only in programs that XLA compiles. The calls are the same
as JAX's: operands are [batch, length, heads, d_kv] in row-major order, results [batch, heads,
length, d_kv] with the same order in memory. TensorFlow's own operation for custom calls cannot
express the order of a result, so a call is a StableHLO module. XLA then needs no transposes.

The kernels support causal masks, causal windows, and segments as lengths and offsets (`Packed`).
Any other mask is a bias, which takes time because a kernel reads it once per head. Which of them a
call has is decided when the program is traced: a GPU's host would wait for a condition.
"""

import functools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.mlir.stablehlo import stablehlo
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.framework.config import is_op_determinism_enabled

from t2tp.lowering.mesh_impl import Backend
from t2tp.ops.attention.mask import Mask
from t2tp.ops.attention.score_terms import AllGradients, Gradients, ScoreTerms

_DTYPES = {tf.bfloat16: "BF16", tf.float16: "F16"}
_MLIR_DTYPES = {tf.bfloat16: "bf16", tf.float16: "f16", tf.float32: "f32", tf.int32: "i32"}
_MODULE_VERSION = 9  # Of XlaCallModule, as in jax2tf's README.
# For each matmul of the kernels, its left and right operand: contracted dimensions, then the
# dimension of the heads. Scores and their gradients are [batch, heads, length, memory_length].
_FORWARD = {"bmm1": (3, 3, 2, 2), "bmm2": (3, 1, 1, 2)}
_BACKWARD = {
    "bmm1_grad_gemm1": (2, 1, 1, 2),
    "bmm1_grad_gemm2": (3, 1, 1, 2),
    "bmm2_grad_gemm1": (2, 1, 1, 2),
    "bmm2_grad_gemm2": (3, 3, 2, 2),
}


@functools.cache
def compute_capability() -> tuple[int, int]:
    """Returns the lowest compute capability of the visible GPUs; (0, 0) without GPUs."""
    gpus = map(tf.config.experimental.get_device_details, tf.config.get_visible_devices("GPU"))
    return min((gpu.get("compute_capability", (0, 0)) for gpu in gpus), default=(0, 0))


def takes(dtype: tf.DType, d_kv: int) -> bool:
    """Whether cuDNN has kernels of both passes for a dtype and a head size on these GPUs."""
    capability = compute_capability()
    largest_head = 256 if capability[0] == 9 else 128
    is_fitting = d_kv <= largest_head and d_kv % 8 == 0
    return capability >= (8, 0) and dtype in _DTYPES and is_fitting


def usable(target: Backend, dtype: tf.DType, d_kv: int) -> Backend | None:
    """Returns the target if its programs can use the kernels, otherwise None.

    The kernels require GPUs and compilation by XLA. With op determinism, XLA selects deterministic
    kernels.
    """
    compiles = target.compiles_step or target.compiles_regions
    return target if compiles and not target.on_cpu and takes(dtype, d_kv) else None


def guarded(q: tf.Tensor, mask: Mask) -> tf.Tensor:
    """Returns the queries, or NaN if rows have more segments than the program was compiled for."""
    if mask.segments is None or not _max_segments(mask, q):
        return q
    return q * tf.where(mask.packed.fits, tf.ones([], q.dtype), tf.constant(math.nan, q.dtype))


def forward(
    qs: Sequence[tf.Tensor],
    memory: tuple[tf.Tensor, tf.Tensor, Backend],
    terms: Sequence[ScoreTerms],
) -> list[tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    """Computes the results of `blockwise.forward`, with a rounding error of 0.

    The queries are one part, q (scaled) [batch, heads, length, d_kv]. `memory` has k and v, [batch,
    kv_heads, memory_length, d_kv], and how the program is compiled.
    """
    (q,), (k, v, target), mask = qs, memory, terms[0].mask

    def run(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> list[tf.Tensor]:
        bias, packed = _bias(mask, q), _packed(mask, q, k)
        batch, *rest = q.shape[:3]
        runs = packed[0].shape.num_elements() if packed else batch
        results = [(q.dtype, q.shape), (tf.float32, tf.TensorShape([runs, *rest]))]
        name, config = _name("", bias), _config(q, k, mask, _FORWARD)
        y, log = _call(name, [*_by_position(q, k, v), *bias, *packed], results, config)
        return [y, mask.packed.by_token(log) if packed else log]

    y, log = _compiled(run, target)(q, k, v)
    return [(y, log, tf.zeros_like(y))]


def backward(
    by_query: Sequence[Sequence[tf.Tensor]],
    memory: tuple[tf.Tensor, tf.Tensor, Backend],
    terms: Sequence[ScoreTerms],
) -> AllGradients:
    """Computes the gradients w.r.t. q (scaled), k and v.

    `by_query` has `q`, `forward`'s result and log, and the gradient w.r.t. the result.
    """
    ((q, y, log, dy),), (k, v, target), mask = by_query, memory, terms[0].mask

    def run(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, *others: tf.Tensor) -> list[tf.Tensor]:
        y, log, dy = others
        bias, packed = _bias(mask, q), _packed(mask, q, k)
        log = mask.packed.by_run(log) if packed else log
        y, dy, *inputs = _by_position(y, dy, q, k, v)
        results = [(x.dtype, x.shape) for x in (q, k, v)]
        name, config = _name("Backward", bias), _config(q, k, mask, _BACKWARD)
        return _call(name, [*inputs, log, dy, *bias, y, *packed], results, config)

    d_q, d_k, d_v = _compiled(run, target)(q, k, v, y, log, dy)
    return [Gradients(d_q)], (d_k, d_v)


def _compiled(run: Callable[..., list[tf.Tensor]], target: Backend) -> Callable:
    """Compiles a function with XLA, unless it is a part of a compiled step."""
    return run if target.compiles_step else tf.function(run, jit_compile=True, autograph=False)


def _max_segments(mask: Mask, q: tf.Tensor) -> int:
    """Returns the number of segments in a row that a call without bias supports; 0: none."""
    if mask.window is not None and not mask.causal:
        return 0
    if mask.segments is None or mask.max_segments < 2:
        return 1 if mask.segments is None else mask.max_segments
    batch, heads, length, d_kv = q.shape
    largest_index = batch * heads * length * max(d_kv, mask.max_segments)
    # Deterministic kernels would store the scores of each segment as if it filled a row.
    packs = compute_capability() >= (9, 0) and not is_op_determinism_enabled()
    return mask.max_segments if packs and largest_index < 2**31 else 0


def _bias(mask: Mask, q: tf.Tensor) -> list[tf.Tensor]:
    """Returns the bias [batch, 1, length, memory_length] if the mask needs it."""
    if _max_segments(mask, q):
        return []
    bias = tf.cast(mask.block(mask.whole), q.dtype)
    return [tf.broadcast_to(bias, [q.shape[0], 1, *bias.shape[2:]])]


def _packed(mask: Mask, q: tf.Tensor, k: tf.Tensor) -> list[tf.Tensor]:
    """Returns lengths of queries and keys, and their offsets, if rows have several segments.

    An offset is the index of an element in [batch, length, heads, d_kv].
    """
    if _max_segments(mask, q) < 2:
        return []
    lengths, tokens = (tf.cast(x, tf.int32) for x in (mask.packed.lengths, mask.packed.offsets))
    return [lengths, lengths, *(tokens * (x.shape[1] * x.shape[3]) for x in (q, k))]


def _by_position(*tensors: tf.Tensor) -> list[tf.Tensor]:
    """Transposes [batch, heads, length, d_kv] -> [batch, length, heads, d_kv]."""
    return [tf.transpose(x, [0, 2, 1, 3]) for x in tensors]


def _name(direction: str, bias: Sequence[tf.Tensor]) -> str:
    return f"__cudnn$fmha{'ScaleBias' if bias else ''}Softmax{direction}"


def _call(
    name: str,
    operands: Sequence[tf.Tensor],
    results: Sequence[tuple[tf.DType, tf.TensorShape]],
    config: str,
) -> list[tf.Tensor]:
    """Returns the results of a custom call except the last one, its workspace."""
    inputs = tuple(_type(x.dtype, x.shape) for x in operands)
    return xla.call_module(
        operands,
        version=_MODULE_VERSION,
        module=_module(name, inputs, tuple(_type(*x) for x in results), config),
        Tout=[dtype for dtype, _ in results],
        Sout=[shape for _, shape in results],
        platforms=["CUDA"],
        disabled_checks=[xla.call_module_disable_check_platform()],
    )


def _type(dtype: tf.DType, shape: tf.TensorShape) -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{_MLIR_DTYPES[dtype]}>"


@functools.lru_cache(64)
def _module(name: str, operands: tuple[str, ...], results: tuple[str, ...], config: str) -> bytes:
    """Returns a serialized StableHLO module whose function `main` is a custom call.

    Results of four dimensions are stored in the order [batch, length, heads, d_kv].
    """

    def layouts(types: Sequence[str], of_four: list[int]) -> str:
        ranks = [each.count("x") for each in types]
        orders = [of_four if rank == 4 else [*range(rank)[::-1]] for rank in ranks]
        return ", ".join(f"dense<{order}> : tensor<{len(order)}xindex>" for order in orders)

    names = [f"%{i}" for i in range(len(operands))]
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, operands, strict=True))
    every = (*results, "tensor<0xui8>")
    returned = ", ".join(f"%out#{i}" for i in range(len(results)))
    quoted = config.replace('"', '\\"')
    text = f"""
      func.func public @main({arguments}) -> ({", ".join(results)}) {{
        %out:{len(every)} = stablehlo.custom_call @{json.dumps(name)}({", ".join(names)}) {{
          api_version = 2 : i32, backend_config = "{quoted}",
          operand_layouts = [{layouts(operands, [3, 2, 1, 0])}],
          result_layouts = [{layouts(every, [3, 1, 2, 0])}]
        }} : ({", ".join(operands)}) -> ({", ".join(every)})
        return {returned} : {", ".join(results)}
      }}"""
    return stablehlo.serialize_portable_artifact_str(text, stablehlo.get_current_version())


def _config(
    q: tf.Tensor, k: tf.Tensor, mask: Mask, matmuls: dict[str, tuple[int, int, int, int]]
) -> str:
    """Returns the configuration of a call as JSON for XLA."""
    scores = [*q.shape[:3], k.shape[2]]
    count = _max_segments(mask, q)
    kinds = ("PADDING", "PADDING_CAUSAL") if count > 1 else ("NO_MASK", "CAUSAL")
    config: dict[str, Any] = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": 1.0,
        "dropout_rate": 0.0,
        "intermediate_tensor_shape": {
            "element_type": _DTYPES[q.dtype],
            "dimensions": [str(size) for size in scores],
            "layout": {"minor_to_major": ["3", "2", "1", "0"]},
            "is_dynamic_dimension": [False] * 4,
        },
        "seed": "42",
        "is_flash_attention": True,
        "mask_type": kinds[mask.causal],
        "sliding_window_length": mask.window or 0 if count else 0,
        "max_seg_per_batch": max(1, count),
    }
    for matmul, (left, right, *heads) in matmuls.items():
        config[f"{matmul}_dot_dimension_numbers"] = {
            "lhs_contracting_dimensions": [str(left)],
            "rhs_contracting_dimensions": [str(right)],
            "lhs_batch_dimensions": ["0", str(heads[0])],
            "rhs_batch_dimensions": ["0", str(heads[1])],
        }
    return json.dumps({"cudnn_fmha_backend_config": config})
