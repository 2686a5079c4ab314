"""What a step of each family moves between devices: as many collectives as the textbooks say."""

import pytest

from t2tp.optim import apply_gradients
from t2tp.program.abstract_program import AbstractProgram
from tests.models.small_transformers import FAMILIES

MODEL = "heads:model;d_ff:model;vocab:model"
EXPERTS = "batch:data;experts:data"
# Reductions over the model axis: forward and backward, each (besides layers, a layer).
# Forward: an embedding is one, the loss of a split vocabulary two, a block one. Backward: a block
# one, the logits' gradient w.r.t. what enters them one; what all cross-attention reads, one; and
# one number for the norm of the gradient.
REDUCTIONS = {
    "lm": ((3, 2), (2, 2)),
    "moe": ((3, 2), (2, 2)),
    "masked": ((3, 2), (2, 2)),
    "classes": ((1, 2), (1, 2)),
    "encdec": ((4, 5), (3, 5)),
}


def collectives(name, mesh_shape, layout, backward=True, **changes):
    """How many there are, by kind and axes."""
    family = FAMILIES[name]
    hparams = family.hparams(**changes)

    def step(mesh, features):
        out = family.make(**changes).loss(mesh, features, training=True)
        if backward:
            apply_gradients(out.loss, mesh, hparams, 100)
        return {"loss": out.loss}

    program = AbstractProgram(step, family.features(), mesh_shape=mesh_shape, layout=layout)
    return {key: count for key, (count, _) in program.collectives().items()}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_each_block_costs_a_reduction_forward_and_one_backward(name):
    (first, each), (first_back, each_back) = REDUCTIONS[name]
    counted = collectives(name, "model:4", MODEL, backward=False, num_hidden_layers=1)
    assert counted == {("allreduce", ("model",)): first + each}
    both = first + first_back + 2 * (each + each_back)
    counted = collectives(name, "model:4", MODEL, num_hidden_layers=2)
    assert counted == {("allreduce", ("model",)): both}


@pytest.mark.parametrize("name", ["encdec", "classes"])
def test_data_parallel_training_reduces_each_gradient_once(name):
    """All in one go; besides, two numbers: the sum of the losses and how many they are of."""
    assert collectives(name, "data:4", "batch:data") == {("allreduce", ("data",)): 2}


def test_a_layer_of_experts_costs_two_all_to_alls_forward_and_two_backward():
    forward = collectives("moe", "data:4", EXPERTS, backward=False)
    both = collectives("moe", "data:4", EXPERTS)
    assert forward["alltoall", ("data",)] == 2
    assert both["alltoall", ("data",)] == 4
    assert {kind for kind, _ in both} == {"alltoall", "allreduce"}


def test_experts_on_an_axis_of_their_own_cost_as_many_all_to_alls_and_compute_nothing_twice():
    layout = "batch:data+expert;experts:expert"
    forward = collectives("moe", "data:2;expert:2", layout, backward=False)
    both = collectives("moe", "data:2;expert:2", layout)
    assert forward["alltoall", ("expert",)] == 2
    assert both["alltoall", ("expert",)] == 4
    assert {kind for kind, _ in both} == {"alltoall", "allreduce"}


def test_experts_on_an_axis_that_splits_the_length_cost_as_many_all_to_alls():
    """One layer of experts in the encoder, one in the decoder; elsewhere the axis splits the
    length, so no device computes what another one does."""
    layout = "batch:data;length:expert;length_groups:expert;experts:expert"
    counted = collectives("moe_encdec", "data:2;expert:2", layout, moe_group_size=6)
    assert counted["alltoall", ("expert",)] == 4 * 2
