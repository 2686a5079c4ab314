"""A plan counts the program's variables and collectives exactly, at any depth."""

from collections import Counter

import pytest

import t2tp
from t2tp import registry
from t2tp.planner import ClusterFile
from t2tp.planner.cluster_file import shipped
from t2tp.step.lowered import LoweredStep
from t2tp.step.work import BACKWARD, FORWARD, UPDATE
from t2tp.trainer.planning import request
from tests.models.small_lm import make_hparams
from tests.planner.engine_cluster import engine_stack

MODEL_LAYOUT = "batch:data;heads:model;d_ff:model;vocab:model"
CASES = {
    "data parallel": {"mesh_shape": "data:4", "layout": "batch:data"},
    "tensor parallel": {"mesh_shape": "data:2;model:2", "layout": MODEL_LAYOUT},
    "sequence parallel": {
        "mesh_shape": "data:2;model:2",
        "layout": f"{MODEL_LAYOUT};residual_length:model",
        "sequence_parallel": True,
    },
    "recomputed": {"mesh_shape": "model:4", "layout": MODEL_LAYOUT, "recompute": "layer"},
    "zero 1": {"mesh_shape": "data:4", "layout": "batch:data", "zero_stage": 1},
    "zero 2": {"mesh_shape": "data:2", "layout": "batch:data", "zero_stage": 2, "microbatches": 2},
    "zero 3": {"mesh_shape": "data:2;model:2", "layout": MODEL_LAYOUT, "zero_stage": 3},
    "joint axes": {"mesh_shape": "pod:2;data:2", "layout": "batch:pod+data"},
    "microbatches": {"mesh_shape": "data:2", "layout": "batch:data", "microbatches": 2},
}


def wanted(**values):
    return request("transformer_lm", make_hparams(**values), vocab_size=30)


def whole(request):
    """Returns the program with all of its layers."""
    return request.program(request.hparams)


def totals(step):
    """Returns FLOPs and bytes by kind of work and phase."""
    sums = Counter()
    for work, number in step.work.items():
        sums[work.kind, work.phase, "flops"] += number * work.times * work.flops
        sums[work.kind, work.phase, "bytes"] += number * work.times * work.num_bytes
    return sums


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_layers_that_are_multiplied_count_like_layers_that_are_lowered(case):
    """Collectives, variables, FLOPs and bytes are equal; the memory peak is close."""
    deep = wanted(num_hidden_layers=5, **CASES[case])
    program, cluster = whole(deep), engine_stack()
    step = deep.lowered(cluster)
    all_layers = LoweredStep.from_program(program, software=cluster.software)
    counts, sizes = Counter(), Counter()
    for traffic, number in step.traffic.items():
        counts[traffic.kind, traffic.axes] += number * traffic.times
        sizes[traffic.kind, traffic.axes] += number * traffic.times * traffic.num_bytes
    assert {key: (counts[key], sizes[key]) for key in counts} == program.collectives()
    said = t2tp.explain(program).data.memory
    assert step.variables["weights"] == said["weights"]
    assert step.variables["optimizer"] == said["optimizer"]
    assert (step.flops, totals(step)) == (all_layers.flops, totals(all_layers))
    assert step.parameters == all_layers.parameters
    assert peak_of(step) == pytest.approx(peak_of(all_layers), rel=0.05)


def test_with_recomputation_the_input_of_each_layer_is_kept():
    """Each device saves a float32 [batch=8, length=12, d_model=16] per layer."""
    kept = [
        wanted(num_hidden_layers=layers, **CASES["recomputed"]).lowered(engine_stack()).layer_bytes
        for layers in (5, 9)
    ]
    assert kept[1]["kept"] - kept[0]["kept"] == 4 * 8 * 12 * 16 * 4


def test_recomputed_layers_gather_as_many_weights_as_the_forward_pass():
    step = wanted(recompute="layer", **CASES["zero 3"]).lowered(engine_stack())
    gathered = Counter()
    for traffic, number in step.traffic.items():
        if traffic.kind == "allgather" and traffic.of_state:
            gathered[traffic.phase] += number * traffic.times * traffic.num_bytes
    assert gathered[BACKWARD] > 0.5 * gathered[FORWARD] > 0.25 * gathered[BACKWARD]


def test_a_stack_may_gather_again_what_a_layer_splits():
    """Each reduction of a gradient then comes with a second gather of the activation."""
    sent = []
    for cluster in (engine_stack(), ClusterFile.load("a100", "megatron")):
        step, counts = wanted(**CASES["sequence parallel"]).lowered(cluster), Counter()
        for t, n in step.traffic.items():
            if t.phase == BACKWARD and not t.of_state:
                counts[t.kind] += n * t.times * t.num_bytes
        sent.append(counts)
    engine, megatron = sent
    assert megatron["allgather"] - engine["allgather"] == engine["reducescatter"] / 2 > 0
    assert megatron["reducescatter"] == engine["reducescatter"]


def test_a_stack_may_repeat_what_no_gradient_needs():
    made = wanted(recompute="layer", mesh_shape="model:4", layout=MODEL_LAYOUT)
    some, all_of_it = (
        sum(w.flops * n for w, n in made.lowered(cluster).work.items() if w.is_recomputed)
        for cluster in (engine_stack(), ClusterFile.load("a100", "megatron"))
    )
    program = whole(made)
    layer_flops = made.lowered(engine_stack()).flops / program.layout.size
    assert some < all_of_it < layer_flops


def test_flops_of_a_step_are_six_times_parameters_and_tokens():
    hparams = registry.hparams("gpt2_small")
    hparams.batch_size, hparams.microbatches = 8, 1
    plan = request("transformer_lm", hparams, 50257).plan(ClusterFile.load("a100"))
    positions = 1024 if hparams.max_length == 1024 else hparams.max_length
    embedded = plan.parameters - positions * 768
    attention = 12 * 12 * 768 * hparams.max_length
    expected = plan.tokens * (6 * embedded + attention)
    assert plan.model_flops == pytest.approx(expected, rel=0.01)
    assert plan.causal_flops == pytest.approx(expected - plan.tokens * attention / 2, rel=0.01)


@pytest.mark.slow
def test_a_split_batch_is_normalized_twice():
    """The kernels first use their slice's statistics, and then the whole batch's."""
    found = []
    for mesh in ("", "data:2"):
        hparams = registry.hparams("mtf_resnet_tiny")
        hparams.parse(f"batch_size=4,batch_size_unit=sequences_per_batch,mesh_shape={mesh}")
        step = request("mtf_resnet", hparams, 10, (32, 32, 3)).lowered(engine_stack())
        found.append(totals(step))
    one, two = found
    for phase in ("forward", "backward"):
        kind = ("batch_norm", phase, "bytes")
        assert 0 < two[kind] == pytest.approx(one[kind], rel=0.01)


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_cluster_can_be_planned_for(name):
    plan = t2tp.plan("transformer_lm", make_hparams(), cluster=name, vocab_size=30)
    assert 0 < plan.interval[0] < plan.seconds < plan.interval[1]
    assert plan.fits == "yes"
    assert plan.to_dict()["memory"]["weights"] > 0


def flops_of(step, kind, *phases):
    return sum(
        n * w.times * w.flops for w, n in step.work.items() if w.kind == kind and w.phase in phases
    )


def peak_of(step):
    return max(peak.total for peak in step.memory)


# Model, hparams without and with a feature, the changed quantity, and the range of its ratio.
FEATURES = {
    # Half of the layers attend to a quarter of the keys.
    "windows": (
        *("transformer_lm", "", "layer_pattern=[local,full],attention_window=64"),
        lambda step: flops_of(step, "attention", FORWARD),
        (0.6, 0.65),
    ),
    # Newton-Schulz iterations of the matrices.
    "muon": (
        *("transformer_lm", "optimizer=adam", "optimizer=muon"),
        lambda step: 1 + flops_of(step, "product", UPDATE),
        (1e6, 1e12),
    ),
    # Each layer's matrices are distributed over four processors.
    "muon, dealt out": (
        "transformer_lm",
        *(f"optimizer=muon,num_hidden_layers=6,mesh_shape=data:{size}" for size in (1, 4)),
        lambda step: flops_of(step, "product", UPDATE),
        (0.249, 0.251),
    ),
    # Logits, log-probabilities and gradients of one chunk only.
    "chunked loss": ("transformer_lm", "loss_chunk=-1", "loss_chunk=32", peak_of, (0.1, 0.7)),
    # Look-ups move tokens to slots of their group, and not products with one-hot tensors.
    "groups of tokens": (
        *("transformer_moe", "moe_group_size=32", "moe_group_size=256"),
        lambda step: flops_of(step, "product", FORWARD, BACKWARD),
        (0.99, 1.01),
    ),
    # The experts compute only tokens, and no empty slots of their capacity.
    "dropless experts": (
        *("transformer_moe", "moe_dispatch=capacity", "moe_dispatch=dropless"),
        lambda step: flops_of(step, "product", FORWARD, BACKWARD),
        (0.5, 0.95),
    ),
}


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_changes_the_work_or_the_memory_that_it_should(name):
    model, *changes, measure, (low, high) = FEATURES[name]
    found = []
    for change in changes:
        hparams = registry.hparams(f"{model}_tiny")
        hparams.parse("num_hidden_layers=2,max_length=256,mesh_shape=data:2")
        hparams.parse("batch_size=4,batch_size_unit=sequences_per_batch")
        if change:
            hparams.parse(change)
        found.append(measure(request(model, hparams, 8192).lowered(ClusterFile.load("cpu"))))
    assert low < found[1] / found[0] < high
