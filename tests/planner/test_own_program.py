"""The plan of t2tp's own program on an H200 is near the measured step, by class of kernel."""

import json
from collections import Counter
from pathlib import Path

import pytest

from t2tp import registry
from t2tp.planner import ClusterFile
from t2tp.planner.plan import HOST
from t2tp.step.work import ATTENTION, CONVOLUTION, PRODUCT
from t2tp.trainer.planning import request

FIGURES = Path(__file__).parents[2] / "benchmarks/gpu/nvidia_h200.json"
# Name, width, heads, layers, length and rows. The shares are fitted to the 124M models.
MODELS = [("124M", 768, 12, 12, 1024, 16), ("124M", 768, 12, 12, 2048, 8)]
MODELS.append(("1.3B", 2048, 16, 24, 2048, 2))


def planned(width, heads, layers, length, rows):
    hparams = registry.hparams("transformer_lm_plain")
    hparams.parse(
        f"d_model={width},d_ff={4 * width},num_heads={heads},d_kv={width // heads},mlp=gelu,"
        f"num_hidden_layers={layers},max_length={length},norm_type=layer,use_bias=True,"
        f"activation_dtype=bfloat16,clip_grad_norm=1.0,weight_decay=0.1,batch_size={rows},"
        "batch_size_unit=sequences_per_batch,mesh_shape=,layout="
    )
    return request("transformer_lm", hparams, 50304).plan(ClusterFile.load("h200"))


def by_class(plan):
    seconds = Counter()
    for cost in plan.costs:
        kind = "matmul" if cost.kind in (PRODUCT, CONVOLUTION) else "memory-bound"
        kind = "attention" if cost.kind.startswith(ATTENTION) else kind
        seconds["gaps" if cost.kind == HOST else kind] += cost.seconds
    return seconds


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model[0]}, {model[4]}")
def test_a_measured_step_is_planned_by_class_of_kernel(model):
    name, *sizes, length, rows = model
    measured = json.loads(FIGURES.read_text())["figures"][f"train {name} length {length} t2tp"]
    seconds = sorted(measured["seconds"])[2]
    plan = planned(*sizes, length, rows)
    assert plan.seconds == pytest.approx(seconds, rel=0.08)
    for kind, own in by_class(plan).items():
        assert own == pytest.approx(measured["fractions"][kind] * seconds, rel=0.2), kind
    held = plan.memory_total - plan.memory["reserved"]
    assert held == pytest.approx(measured["peak_bytes"], rel=0.05)
