"""cuDNN's fused attention kernels for 16-bit floats on GPUs.

The kernels never write the scores to memory (J. Shah et al., "FlashAttention-3", arXiv:2407.08608).
They are custom calls of XLA, so they run only in programs that XLA compiles. Their operands are
[batch, heads, length, d_kv] in row-major order.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.framework.config import is_op_determinism_enabled

from t2tp.lowering.mesh_impl import Target
from t2tp.ops.attention.mask import Mask
from t2tp.ops.attention.score_terms import Gradients

_LARGEST_HEAD = 128
_DTYPES = {tf.bfloat16: "BF16", tf.float16: "F16"}
# For each matmul of the kernels: the contracted dimensions of its left and right operand.
_FORWARD = {"bmm1": (3, 3), "bmm2": (3, 2)}
_BACKWARD = {
    "bmm1_grad_gemm1": (2, 2),
    "bmm1_grad_gemm2": (3, 2),
    "bmm2_grad_gemm1": (2, 2),
    "bmm2_grad_gemm2": (3, 3),
}


def takes(dtype: tf.DType, d_kv: int) -> bool:
    """Whether cuDNN has kernels for a dtype and a head size."""
    return dtype in _DTYPES and d_kv <= _LARGEST_HEAD and d_kv % 8 == 0


def usable(target: Target, dtype: tf.DType, d_kv: int) -> Target | None:
    """Returns the target if its programs can use the kernels, otherwise None.

    The kernels require GPUs and compilation by XLA. Their gradients are not deterministic, so
    programs with op determinism do not use them.
    """
    compiles = target.compiles_step or target.compiles_regions
    is_fast = compiles and not target.on_cpu and not is_op_determinism_enabled()
    return target if takes(dtype, d_kv) and is_fast else None


def forward(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, mask: Mask, target: Target
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes the results of `blockwise.forward`, with a rounding error of 0.

    `q` (scaled) is [batch, heads, length, d_kv]; `k` and `v` are [batch, kv_heads, memory_length,
    d_kv].
    """

    def call(bias: Sequence[tf.Tensor], q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> list[Any]:
        return _call(
            _name("", bias),
            [q, k, v, *bias],
            [(q.dtype, q.shape), (tf.float32, q.shape[:3])],
            _config(q, k, mask.causal, _FORWARD),
        )

    y, log = _run(call, mask, target, q, k, v)
    return y, log, tf.zeros_like(y)


def backward(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    y: tf.Tensor,
    log: tf.Tensor,
    dy: tf.Tensor,
    mask: Mask,
    target: Target,
) -> Gradients:
    """Computes the gradients w.r.t. q (scaled), k and v from `forward`'s results."""

    def call(
        bias: Sequence[tf.Tensor],
        q: tf.Tensor,
        k: tf.Tensor,
        v: tf.Tensor,
        y: tf.Tensor,
        log: tf.Tensor,
        dy: tf.Tensor,
    ) -> list[Any]:
        return _call(
            _name("Backward", bias),
            [q, k, v, log, dy, *bias, y],
            [(x.dtype, x.shape) for x in (q, k, v)],
            _config(q, k, mask.causal, _BACKWARD),
        )

    d_q, d_k, d_v = _run(call, mask, target, q, k, v, y, log, dy)
    return Gradients(d_q, d_k, d_v, None)


def _run(
    call: Callable[..., list[Any]], mask: Mask, target: Target, *inputs: tf.Tensor
) -> list[tf.Tensor]:
    """Calls a kernel.

    The kernels support causal masks. Any other mask is passed as a bias, which takes time because
    the kernel reads it once per head.
    """
    has_one_segment = mask.has_one_segment  # Computed in the caller's graph, once for all layers.

    def masked(*inputs: tf.Tensor) -> list[Any]:
        if mask.is_only_causal:
            return call((), *inputs)

        def with_bias() -> list[Any]:
            bias = tf.cast(mask.block(mask.whole), inputs[0].dtype)
            shape = [inputs[0].shape[0], 1, *bias.shape[2:]]
            return call((tf.broadcast_to(bias, shape),), *inputs)

        if has_one_segment is None:
            return with_bias()
        return tf.cond(has_one_segment, lambda: call((), *inputs), with_bias)

    if target.compiles_step:
        return masked(*inputs)
    return tf.function(masked, jit_compile=True, autograph=False)(*inputs)


def _name(direction: str, bias: Sequence[tf.Tensor]) -> str:
    return f"__cudnn$fmha{'ScaleBias' if bias else ''}Softmax{direction}"


def _call(
    name: str, inputs: Sequence[tf.Tensor], results: Sequence[tuple[tf.DType, Any]], config: str
) -> list[tf.Tensor]:
    """Returns the results of a custom call except the last one, its workspace."""
    dtypes, shapes = zip(*results, (tf.uint8, [0]), strict=True)
    return gen_xla_ops.xla_custom_call_v2(
        operands=inputs,
        call_target_name=name,
        backend_config=config,
        has_side_effect=False,
        result_dtypes=dtypes,
        result_shapes=shapes,
    )[:-1]


def _config(
    q: tf.Tensor, k: tf.Tensor, is_causal: bool, contracted: dict[str, tuple[int, int]]
) -> str:
    """Returns the configuration of a call as JSON for XLA."""
    scores = [*q.shape[:3], k.shape[2]]
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
        "mask_type": "CAUSAL" if is_causal else "NO_MASK",
        "sliding_window_length": 0,
    }
    for matmul, (left, right) in contracted.items():
        config[f"{matmul}_dot_dimension_numbers"] = {
            "lhs_contracting_dimensions": [str(left)],
            "rhs_contracting_dimensions": [str(right)],
            "lhs_batch_dimensions": ["0", "1"],
            "rhs_batch_dimensions": ["0", "1"],
        }
    return json.dumps({"cudnn_fmha_backend_config": config})
