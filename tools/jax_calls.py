"""Prints JAX's calls of cuDNN's attention as JSON, for `tests/ops/attention/test_cudnn.py`.

    python -m tools.jax_calls >tests/ops/attention/jax_calls.json

It needs JAX (tried with 0.10.2), but no GPU.
"""

import json

from tests.ops.attention.jax_calls import (
    BATCH,
    CASES,
    D_KV,
    HEADS,
    LENGTH,
    MAX_SEGMENTS,
    SEGMENTS,
    calls_of,
)


def main() -> None:
    """Prints the calls of each case, and the lengths and offsets of packed rows."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax._src.cudnn import fused_attention_stablehlo as fused

    # The checks ask for a GPU.
    fused.check_compute_capability = lambda _: True
    fused.check_cudnn_version = lambda: 91000
    fused.check_is_flash_attention = lambda *args, **kwargs: None
    starts = [[i for i in range(LENGTH) if not i or row[i] != row[i - 1]] for row in SEGMENTS]
    offsets = np.full((BATCH, MAX_SEGMENTS + 1), -1, np.int32)
    lengths = np.full((BATCH, MAX_SEGMENTS), -1, np.int32)
    for row, begins in enumerate(starts):
        offsets[row, : len(begins)] = begins
        lengths[row, : len(begins)] = np.diff([*begins, LENGTH])
    x = jnp.zeros((BATCH, LENGTH, HEADS, D_KV), jnp.bfloat16)
    calls = {}
    for name, (causal, window, has_segments, has_bias) in CASES.items():
        kinds = fused.MaskType
        kind = kinds.CAUSAL if causal else kinds.NO_MASK
        packed = {}
        if has_segments:
            kind = kinds.PADDING_CAUSAL if causal else kinds.PADDING
            packed = {"q_seqlen": lengths, "kv_seqlen": lengths}
            packed |= {"q_offsets": offsets, "kv_offsets": offsets}
        packed = {key: jnp.asarray(value) for key, value in packed.items()}

        def attend(q, k, v, bias, packed=packed, kind=kind, window=window):
            return (
                fused.dot_product_attention(
                    q, k, v, bias, mask_type=kind, sliding_window_length=window, **packed
                )
                .astype(jnp.float32)
                .sum()
            )

        bias = jnp.zeros((BATCH, 1, LENGTH, LENGTH), jnp.bfloat16) if has_bias else None
        step = jax.jit(jax.grad(attend, (0, 1, 2)))
        lowered = step.trace(x, x, x, bias).lower(lowering_platforms=("cuda",))
        calls[name] = calls_of(lowered.compiler_ir("hlo").as_hlo_text())
    fixed = fused._fix_seqlen_offsets(*map(jnp.asarray, (lengths, lengths, offsets, offsets)), x, x)
    calls["lengths_and_offsets"] = [np.asarray(array).tolist() for array in fixed]
    rows = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in calls.items()]
    print("{" + ",\n".join(rows) + "}")


if __name__ == "__main__":
    main()
