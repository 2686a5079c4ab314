"""Any model trains the same with any sharding at rest and any optimizer.

Programs are in float64, so that rounding hides no error.
"""

import functools
import json

import numpy as np
import pytest

import t2tp
from tests.layout_check.double_program import values_of
from tests.models.small_transformers import FAMILIES
from tests.optim.sharded_layers import LAYER_BYTES, MATRIX_BYTES
from tests.optim.sharded_programs import make
from tests.pipeline.staged_steps import assert_equal
from tests.warm_processes import printed, tf_configs


def run(program, family, steps):
    """Returns the loss and the gradient norm of each step."""
    results = [program(FAMILIES[family].batch(), number) for number in steps]
    return np.array([[float(x[name]) for name in ("loss", "gradient_norm")] for x in results])


@functools.cache
def trained(family, mesh, stage, optimizer="sgd", steps=2, **changes):
    """Returns the losses and gradient norms of some `steps`, and the variables after them."""
    program = make(family, mesh, stage, optimizer, **changes)
    return {"steps": run(program, family, range(steps)), **values_of(program)}


UNEVEN = {"d_model": 18, "d_ff": 30, "num_heads": 2, "d_kv": 6}
MUON = {"optimizer": "muon", "weight_decay": 0.1, "optimizer_adam_epsilon": 1e-3}
TRANSFERRED = {**MUON, "transfer_from": "transformer_lm_plain_tiny"}


CASES = [
    ("lm", "data", 3, {"tie_embeddings": False}),
    ("lm", "both", 3, {"recompute": "layer", "microbatches": 2, "num_hidden_layers": 2}),
    ("lm", "context", 3, {"clip_grad_norm": 0.1}),
    ("lm", "pods", 3, {"zero_axes": "data", "num_hidden_layers": 2}),
    ("lm", "three axes", 3, {"zero_axes": "data+seq"}),
    ("encdec", "data", 2, {}),
    ("classes", "both", 1, {"microbatches": 2}),
    ("moe", "experts", 3, {}),
    # The axes do not divide the sizes of `UNEVEN`. In "vocab", the axis `model` of size 4 does
    # not divide the models' vocabulary of 30 tokens.
    ("lm", "data", 1, UNEVEN),
    ("lm", "both", 2, {**UNEVEN, "microbatches": 2}),
    ("lm", "vocab", 3, {**UNEVEN, "label_smoothing": 0.1, "z_loss": 1e-3}),
    ("masked", "vocab", 1, {}),
    # Muon needs whole matrices in each step.
    ("lm", "vocab", 1, MUON | UNEVEN),
    ("lm", "context", 3, MUON),
    ("lm", "pods", 2, MUON | {"microbatches": 2}),
    ("lm", "stages of 2", 1, MUON | {"microbatches": 2, "num_hidden_layers": 2}),
    ("classes", "both", 0, MUON),
    ("moe", "experts", 2, MUON),
    ("moe_encdec", "data", 3, MUON),
    # Hyperparameters are transferred from a set with a larger width.
    ("lm", "both", 3, TRANSFERRED | {"optimizer": "adam"}),
    ("lm", "both", 0, TRANSFERRED),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "mesh", "stage", "changes"), CASES)
def test_a_step_is_that_of_one_device(family, mesh, stage, changes):
    given = trained(family, mesh, stage, **changes)
    assert_equal(given, trained(family, "one device", 0, **changes), least=1.0)


UPDATED = [("adam", 3, 131), ("adafactor", 1, 128), ("adafactor", 3, 131)]


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "stage", "d_model"), UPDATED)
def test_ten_updates_of_parts_are_those_of_whole_variables(optimizer, stage, d_model):
    """Adafactor factors dimensions of at least 128; its norms must be norms of whole variables."""
    changes = {
        "d_model": d_model,
        "d_ff": 160,
        "clip_grad_norm": 0.5,
        "ema_decay": 0.9,
        "weight_decay": 0.1,
        "on_nonfinite": "skip",
        "optimizer_adam_epsilon": 1e-3,
    }
    given = trained("lm", "both", stage, optimizer, steps=10, **changes)
    wanted = trained("lm", "one device", 0, optimizer, steps=10, **changes)
    assert_equal(given, wanted, 1e-10, least=1.0)


MOVED = [(("both", 3), ("data", 0)), (("data", 1), ("vocab", 3))]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), MOVED)
def test_a_checkpoint_restores_into_any_stage_and_mesh(tmp_path, before, after):
    changes = {**UNEVEN, "optimizer": "adam", "optimizer_adam_epsilon": 1e-3, "kind": t2tp.Program}
    first = make("lm", *before, **changes)
    run(first, "lm", range(1))
    t2tp.save_checkpoint(tmp_path, first, 1)
    second = make("lm", *after, **changes)
    assert t2tp.restore_checkpoint(tmp_path, second) == 1
    alone = make("lm", "one device", 0, **changes)
    run(alone, "lm", range(1))
    given, wanted = (
        {"steps": run(each, "lm", range(1, 2))} | {v.spec.name: v.numpy() for v in each.variables}
        for each in (second, alone)
    )
    assert_equal(given, wanted, 1e-4, least=1.0)


def sent(program):
    """Returns the sizes of the full tensors that a step gathers, reduce-scatters, all-reduces."""
    by_kind = {"allgather": 0, "reducescatter": 0, "allreduce": 0}
    for (kind, _), (_, size) in program.collectives().items():
        if kind in by_kind:
            by_kind[kind] += size
    return 4 * by_kind["allgather"], by_kind["reducescatter"], by_kind["allreduce"]


@pytest.mark.slow
def test_traffic_is_that_of_the_papers_with_microbatches_too():
    """Checks each ZeRO stage's traffic.

    Stages 1 and 2 move as much as an all-reduce: a reduce-scatter and an all-gather. Stage 3
    moves half as much again. With microbatches, stage 1 reduces the gradients of the batch, and
    stages 2 and 3 reduce the gradients of each microbatch.
    """

    def collectives(stage, microbatches=1):
        changes = {"position": "sinusoidal", "tie_embeddings": False}
        changes |= {"microbatches": microbatches, "kind": t2tp.Program}
        return sent(make("lm", "data", stage, **changes))

    def traffic(stage, microbatches=1):
        return collectives(stage, microbatches)[:2]

    gathered, scattered = traffic(1)
    # Vectors, the loss, and the norm (one more number) are still all-reduced.
    plain, vectors = (collectives(stage)[2] for stage in (0, 1))
    assert plain - vectors == pytest.approx(scattered, abs=16)
    assert gathered == scattered > 0
    assert traffic(2) == (gathered, scattered)
    # The backward pass does not gather the embedding again, as it does not need it.
    twice = 2 * gathered - 30 * 16 * 4
    assert traffic(3) == (twice, scattered)
    assert traffic(1, 2) == (gathered, scattered)
    assert traffic(2, 2) == (gathered, 2 * scattered)
    assert traffic(3, 2) == (2 * twice, 2 * scattered)


PROCESSES, LAYERS = 2, 12
# Memory besides layers: one matrix's gradient before and after its reduce-scatter, activations, and
# allocations of Python and TensorFlow.
ELSE = 2 * MATRIX_BYTES + 5_000_000


@pytest.mark.ci_only
@pytest.mark.slow
def test_a_step_needs_the_layers_that_it_computes(tmp_path):
    """A layer needs its weights, and its gradients until they are reduce-scattered."""
    changes = ["clip_grad_norm=0", "clip_grad_norm=0,zero_prefetch=0", "clip_grad_norm=1"]
    arguments = [[str(PROCESSES), str(LAYERS), str(tmp_path / "run"), *changes]] * PROCESSES
    target = "tests.optim.sharded_layers:main"
    found = printed(target, arguments, tf_configs(PROCESSES), tmp_path / "printed", seconds=400)
    for ahead, in_turn, clipped in map(json.loads, found):
        for each in (ahead, in_turn, clipped):
            *losses, after, again = each["losses"]
            assert after < losses[-1] < losses[0]
            assert again == after  # the checkpoint was restored before this step
            assert max(each["initial values"], each["save"], each["restore"]) < LAYER_BYTES + ELSE
        assert ahead["step"] < 2 * 2 * LAYER_BYTES + ELSE
        # A layer's weights and gradients, and the gradients of the next layer, which may not be
        # reduced yet.
        assert in_turn["step"] < 3 * LAYER_BYTES + ELSE
        # The norm needs the gradients of all layers; each process stores its part of them.
        parts = LAYERS * LAYER_BYTES / PROCESSES
        assert clipped["step"] < 2 * 2 * LAYER_BYTES + parts + ELSE
