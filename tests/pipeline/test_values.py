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
BY_HAND = dict(layers="1,2", num_hidden_layers=3, microbatches=1)
SEQUENCE = f"{MEGATRON};residual_length:model"


def case(family, mesh, *parts, **changes):
    """Returns a family, a mesh, and the other arguments of `with_and_without_stages`."""
    arguments = {}
    for part in (*parts, changes):
        arguments |= part
    return family, mesh, arguments


# A case takes seconds, so most cases combine a feature of the pipeline with a feature of the model
# or its update.
CASES = {
    "GPipe, one microbatch, layers assigned by hand, relative positions": case(
        "lm", "stage:2", BY_HAND, schedule="gpipe", position="relative", teacher_layers=5
    ),
    "1F1B": case("lm", "stage:4", microbatches=8),
    "interleaved, smoothed, untied": case("lm", "stage:2", INTERLEAVED, SMOOTHED, teacher_layers=6),
    "zero bubble, chunks, recomputed attention, Lion": case(
        "lm", "stage:2", schedule="zero_bubble", chunks=2, optimizer="lion", recompute="attention"
    ),
    "three stages, Adafactor, averages, clipping": case(
        "lm", "stage:3", ZERO_BUBBLE, ADAFACTOR, teacher_layers=2
    ),
    "data and tensor, ZeRO 1": case(
        "lm", "stage:2;data:2;model:2", TWO, rules=MEGATRON, zero=1, teacher_layers=3
    ),
    "context, recomputed layers": case(
        "lm", "stage:2;seq:2", TWO, rules="length:seq", recompute="layer"
    ),
    "masked, ZeRO 2": case("masked", "stage:2;data:2", TWO, zero=2, rules="batch:data"),
    "ZeRO 3": case(
        "lm", "data:2;stage:2", ZERO_BUBBLE, TWO, rules=MEGATRON, zero=3, teacher_layers=4
    ),
    "sequence parallel": case(
        "lm", "stage:2;model:2", num_hidden_layers=2, sequence_parallel=True, rules=SEQUENCE
    ),
    "experts in every other layer, ZeRO 3": case(
        "moe", "stage:2;data:2", ZERO_BUBBLE, DROPLESS, rules="batch:data", zero=3, teacher_layers=4
    ),
    "two stacks, tensor": case("encdec", "stage:2;model:2", ZERO_BUBBLE, TWO, rules=MEGATRON),
    "two stacks with experts": case("moe_encdec", "stage:2", TWO, schedule="gpipe"),
    "encoder with experts": case("moe_classes", "stage:2", INTERLEAVED, microbatches=2),
    "image classes": case("vit", "stage:2", ZERO_BUBBLE, TWO),
    "images": case("images", "stage:2", TWO),
    "adapters": case("lm", "stage:2", num_hidden_layers=2, lora_rank=2),
}
SLOW = [name if name == "1F1B" else pytest.param(name, marks=pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize("name", SLOW)
def test_a_pipeline_changes_nothing(name):
    family, mesh, arguments = CASES[name]
    assert_equal(*with_and_without_stages(family, mesh, **arguments))
