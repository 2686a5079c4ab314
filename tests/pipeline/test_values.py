"""A pipeline's step has the loss, metrics, gradients and updates of a step without stages.

Cases differ in family, stages, schedule, microbatches and other axes. All are in float64.
"""

import pytest

from tests.models.small_transformers import MEGATRON
from tests.pipeline.staged_steps import assert_equal, with_and_without_stages

SMOOTHED = dict(label_smoothing=0.1, tie_embeddings=False, loss_chunk=5)
DROPLESS = dict(moe_every=2, moe_dispatch="dropless", relu_dropout=0.0, moe_gating="top_k")
DROPLESS |= dict(moe_router_scores="sigmoid", moe_balance_rate=0.01, moe_shared_d_ff=8)
ADAFACTOR = dict(optimizer="adafactor", ema_decay=0.9, clip_grad_norm=1e-3, num_hidden_layers=3)
ZERO_BUBBLE = dict(schedule="zero_bubble", microbatches=2)
INTERLEAVED = dict(schedule="interleaved", chunks=2)
TWO = dict(num_hidden_layers=2, microbatches=2)
# Family, mesh, and arguments of `with_and_without_stages`. A case takes seconds, so most cases
# combine a feature of the pipeline with a feature of the model or its update.
CASES = {
    "GPipe, one microbatch, layers assigned by hand, relative positions": (
        *("lm", "stage:2"),
        dict(schedule="gpipe", microbatches=1, layers="1,2", num_hidden_layers=3)
        | dict(position="relative", teacher_layers=5),
    ),
    "1F1B": ("lm", "stage:4", dict(microbatches=8)),
    "interleaved, label smoothing, untied": (
        "lm",
        "stage:2",
        INTERLEAVED | SMOOTHED | dict(teacher_layers=6),
    ),
    "zero bubble, chunks, recomputed attention, Lion": (
        *("lm", "stage:2"),
        dict(schedule="zero_bubble", chunks=2, optimizer="lion", recompute="attention"),
    ),
    "three stages, Adafactor, averages, clipping": (
        *("lm", "stage:3", ZERO_BUBBLE | ADAFACTOR | dict(teacher_layers=2)),
    ),
    "data and tensor, ZeRO 1": (
        "lm",
        "stage:2;data:2;model:2",
        dict(rules=MEGATRON, zero=1, teacher_layers=3, **TWO),
    ),
    "context, recomputed layers": (
        *("lm", "stage:2;seq:2", dict(rules="length:seq", recompute="layer", **TWO)),
    ),
    "masked, ZeRO 2": ("masked", "stage:2;data:2", dict(zero=2, rules="batch:data", **TWO)),
    "ZeRO 3": (
        *(
            "lm",
            "data:2;stage:2",
            dict(rules=MEGATRON, zero=3, teacher_layers=4) | ZERO_BUBBLE | TWO,
        ),
    ),
    "sequence parallel": (
        *("lm", "stage:2;model:2"),
        dict(
            rules=f"{MEGATRON};residual_length:model", num_hidden_layers=2, sequence_parallel=True
        ),
    ),
    "experts in every other layer, ZeRO 3": (
        *(
            "moe",
            "stage:2;data:2",
            dict(rules="batch:data", zero=3) | ZERO_BUBBLE | DROPLESS | dict(teacher_layers=4),
        ),
    ),
    "two stacks, tensor": ("encdec", "stage:2;model:2", dict(rules=MEGATRON) | ZERO_BUBBLE | TWO),
    "two stacks with experts": ("moe_encdec", "stage:2", dict(schedule="gpipe", **TWO)),
    "encoder with experts": ("moe_classes", "stage:2", dict(microbatches=2, **INTERLEAVED)),
    "image classes": ("vit", "stage:2", ZERO_BUBBLE | TWO),
    "images": ("images", "stage:2", TWO),
    "adapters": ("lm", "stage:2", dict(num_hidden_layers=2, lora_rank=2)),
}
SLOW = [case if case == "1F1B" else pytest.param(case, marks=pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize("case", SLOW)
def test_a_pipeline_changes_nothing(case):
    family, mesh, arguments = CASES[case]
    assert_equal(*with_and_without_stages(family, mesh, **arguments))
