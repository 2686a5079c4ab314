"""A step of a pipeline is the step without one: loss, metrics, gradients and updates, in float64.

Whatever the family, the number of stages, the schedule, the microbatches and the other axes.
"""

from __future__ import annotations

import pytest

from tests.models.small_transformers import MEGATRON
from tests.pipeline.staged_steps import assert_equal, pipelined, unpipelined

FEW_LAYERS = (("num_hidden_layers", 2),)
SMOOTHED = (("label_smoothing", 0.1), ("tie_embeddings", False), ("loss_chunk", 5))
DROPLESS = (
    ("moe_every", 2),
    ("moe_dispatch", "dropless"),
    ("relu_dropout", 0.0),
    ("moe_gating", "top_k"),
    ("moe_router_scores", "sigmoid"),
    ("moe_balance_rate", 0.01),
    ("moe_shared_d_ff", 8),
)
ADAFACTOR = (("optimizer", "adafactor"), ("ema_decay", 0.9), ("clip_grad_norm", 1e-3))
# family, mesh, and the arguments of `pipelined`. A case takes seconds, so most have two things to
# get wrong: one of the pipeline and one of the model or its update.
CASES = {
    "GPipe, one microbatch, layers assigned by hand, relative positions": (
        "lm",
        "stage:2",
        {
            "schedule": "gpipe",
            "microbatches": 1,
            "layers": "1,2",
            "changes": (("num_hidden_layers", 3), ("position", "relative")),
        },
    ),
    "1F1B": ("lm", "stage:4", {"microbatches": 8}),
    "interleaved, label smoothing, untied": (
        "lm",
        "stage:2",
        {"schedule": "interleaved", "chunks": 2, "changes": SMOOTHED},
    ),
    "zero bubble, chunks, recomputed attention, Lion": (
        "lm",
        "stage:2",
        {
            "schedule": "zero_bubble",
            "chunks": 2,
            "changes": (("optimizer", "lion"), ("recompute", "attention")),
        },
    ),
    "three stages, Adafactor, averages, clipping": (
        "lm",
        "stage:3",
        {
            "schedule": "zero_bubble",
            "microbatches": 2,
            "changes": (*ADAFACTOR, ("num_hidden_layers", 3)),
        },
    ),
    "data and tensor, ZeRO 1": (
        "lm",
        "stage:2;data:2;model:2",
        {"rules": MEGATRON, "zero": 1, "microbatches": 2, "changes": FEW_LAYERS},
    ),
    "context, recomputed layers": (
        "lm",
        "stage:2;seq:2",
        {
            "rules": "length:seq",
            "microbatches": 2,
            "changes": (*FEW_LAYERS, ("recompute", "layer")),
        },
    ),
    "masked, ZeRO 2": (
        "masked",
        "stage:2;data:2",
        {"zero": 2, "rules": "batch:data", "microbatches": 2, "changes": FEW_LAYERS},
    ),
    "ZeRO 3": (
        "lm",
        "data:2;stage:2",
        {
            "rules": MEGATRON,
            "zero": 3,
            "microbatches": 2,
            "schedule": "zero_bubble",
            "changes": (*FEW_LAYERS, ("loss_chunk", 5)),
        },
    ),
    "sequence parallel": (
        "lm",
        "stage:2;model:2",
        {
            "rules": f"{MEGATRON};residual_length:model",
            "changes": (*FEW_LAYERS, ("sequence_parallel", True)),
        },
    ),
    "experts in every other layer": (
        "moe",
        "stage:2;data:2",
        {"rules": MEGATRON, "schedule": "zero_bubble", "microbatches": 2, "changes": DROPLESS},
    ),
    "two stacks, tensor": (
        "encdec",
        "stage:2;model:2",
        {"rules": MEGATRON, "schedule": "zero_bubble", "microbatches": 2, "changes": FEW_LAYERS},
    ),
    "two stacks with experts": (
        "moe_encdec",
        "stage:2",
        {"schedule": "gpipe", "microbatches": 2, "changes": FEW_LAYERS},
    ),
    "encoder with experts": (
        "moe_classes",
        "stage:2",
        {"schedule": "interleaved", "chunks": 2, "microbatches": 2},
    ),
    "image classes": (
        "vit",
        "stage:2",
        {"schedule": "zero_bubble", "microbatches": 2, "changes": FEW_LAYERS},
    ),
    "images": ("images", "stage:2", {"microbatches": 2, "changes": FEW_LAYERS}),
    "adapters": ("lm", "stage:2", {"changes": (*FEW_LAYERS, ("lora_rank", 2))}),
}
SLOW = [case if case == "1F1B" else pytest.param(case, marks=pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize("case", SLOW)
def test_a_pipeline_changes_nothing(case):
    family, mesh, arguments = CASES[case]
    wanted = unpipelined(family, arguments.get("changes", ()))
    assert_equal(pipelined(family, mesh, **arguments), wanted)
