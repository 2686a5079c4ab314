"""The memory that a layer saves for the backward pass matches published formulas."""

import dataclasses
import functools

import pytest

from t2tp import registry
from t2tp.planner import ClusterFile
from t2tp.trainer.planning import request
from tests.planner.published_steps import LAYER, layer_requests, wanted

# the 22B model of arXiv:2205.05198
LENGTH, ROWS, WIDTH, HEADS = 2048, 4, 6144, 64
TOKENS = LENGTH * ROWS * WIDTH


def planned(vocab_size, layers, **values):
    common = {"batch_size": ROWS, "microbatches": 1, "mesh_shape": "", "layout": ""}
    return wanted(vocab_size, (WIDTH, HEADS, layers), **{**common, **values})


@functools.cache
def lowered(cluster, layers=2, vocab_size=512, **values):
    return planned(vocab_size, layers, **values).lowered(ClusterFile.load(*cluster.split()))


def kept_by_a_layer(cluster, **values):
    two, one = (lowered(cluster, layers, **values).layer_bytes["kept"] for layers in (2, 1))
    return two - one


@pytest.mark.parametrize("case", LAYER)
def test_a_layer_keeps_what_table_2_says(case):
    cluster, expected = ClusterFile.load("a100", "megatron"), LAYER[case][3]
    two, one = (step.lowered(cluster).layer_bytes["kept"] for step in layer_requests(case))
    # The paper leaves out means and variances of the norms.
    assert two - one == pytest.approx(expected * TOKENS, rel=0.002)


def test_fused_attention_keeps_neither_scores_nor_masks():
    """The attention keeps q, k, v, the result and a number per query (arXiv:2307.08691).

    Of the 34 bytes per element without scores (arXiv:2205.05198), two are for masks that are not
    kept either.
    """
    kept = kept_by_a_layer("h100 fsdp", recompute="none", layer_prepostprocess_dropout=0.1)
    sums = 4 * ROWS * HEADS * LENGTH
    assert kept - sums == pytest.approx(32 * TOKENS, rel=0.002)


def test_kernels_that_fuse_nothing_keep_what_the_program_says():
    stack = ClusterFile.load("h100", "fsdp").software
    assert stack.fuses
    kept = [
        kept_by_a_layer(cluster, recompute="none", d_ff=d_ff)
        for cluster in ("h100 fsdp", "cpu")
        for d_ff in (WIDTH, 2 * WIDTH)
    ]
    # On `h100`, GELU is one kernel, which saves its input and its output. On `cpu`, it is six
    # operations, which save more.
    assert kept[1] - kept[0] == 2 * 2 * TOKENS
    assert kept[3] - kept[2] > 2 * (kept[1] - kept[0])


def test_megatrons_buffers_are_18_bytes_of_a_parameter():
    """16-bit weights, and float32 gradients, weights and two moments."""
    for microbatches in (1, 2):
        step = lowered("a100 megatron", recompute="layer", microbatches=microbatches)
        for peak in step.memory:
            state = sum(step.variables.values()) + sum(
                peak.by_purpose.get(name, 0) for name in ("gathered", "gradients", "sums")
            )
            assert state == pytest.approx(18 * step.parameters, rel=0.01)


def test_a_gradient_is_sharded_as_it_comes():
    """With ZeRO 2, no processor has the gradients of the whole model."""
    sharded, whole = (
        max(
            peak.by_purpose.get("gradients", 0)
            for peak in lowered(
                "h100 fsdp", mesh_shape="data:4", layout="batch:data", zero_stage=stage
            ).memory
        )
        for stage in (2, 0)
    )
    assert sharded == pytest.approx(whole / 4, rel=0.01)


def test_gradients_of_a_stage_wait_unsharded():
    """A pipeline reduces them together, after the backward pass of each microbatch."""
    staged = planned(
        512,
        4,
        batch_size=8,
        microbatches=2,
        zero_stage=2,
        mesh_shape="stage:2;data:4",
        layout="layers:stage;batch:data",
    ).staged(ClusterFile.load("h100", "fsdp"))
    step = staged.of_stage(0)
    last = next(peak for peak in step.memory if peak.point == "end of the backward pass")
    # The gradients of two layers, unsharded, and their sums, sharded over 4 devices.
    layers = 4 * 2 * 12 * WIDTH**2
    held = last.by_purpose["gradients"] + last.by_purpose["sums"]
    assert held == pytest.approx(layers * (1 + 1 / 4), rel=0.15)


def test_an_update_scales_gradients_in_place():
    step = lowered("h100 fsdp", microbatches=2)
    update = next(peak for peak in step.memory if peak.point == "update")
    assert update.total < 1.3 * 4 * step.parameters


def test_the_loss_holds_float32_copies_of_the_logits():
    """Compares one copy, which replaces the 16-bit logits, with three additional copies."""
    vocab_size = 51200
    cluster = ClusterFile.load("h100", "fsdp")
    peaks = []
    for copies in (1, 3):
        stack = dataclasses.replace(cluster.software, float32_logits=copies)
        changed = dataclasses.replace(cluster, stacks={cluster.stack: stack})
        step = planned(vocab_size, 1).lowered(changed)
        peak = next(p for p in step.memory if p.point == "beginning of the backward pass")
        peaks.append(peak.total)
    assert peaks[1] - peaks[0] == pytest.approx((2 * 4 + 2) * ROWS * LENGTH * vocab_size, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a100", "b200"])
def test_llama_8b_with_32k_tokens_a_device_needs_what_was_published(name):
    """A published run held 83.9 GiB, most of it for float32 copies of its logits.

    The stack `fsdp` makes these copies, and no other stack needs more memory.
    """
    hparams = registry.hparams("llama_8b")
    hparams.parse("batch_size=32,batch_size_unit=sequences_per_batch,microbatches=1,zero_stage=3")
    hparams.parse("mesh_shape=data:8,layout=batch:data")
    llama, cluster = request("transformer_lm", hparams, 128_256), ClusterFile.load(name, "fsdp")
    plan = llama.plan(cluster)
    held = plan.memory_total - plan.memory["fragmentation"]
    assert held / 2**30 == pytest.approx(83.9, rel=0.02)
    assert (plan.fits == "yes") == (cluster.usable_memory(8) > 90e9)
    for stack in cluster.stacks:
        other = llama.plan(cluster.with_stack(stack))
        assert other.memory_total <= plan.memory_total
