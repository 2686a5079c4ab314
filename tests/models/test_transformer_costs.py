"""Counts the parameters of a language model, and the collectives of each family's step."""

import pytest

from t2tp.lowering import deferred_sums
from t2tp.optim import apply_gradients
from t2tp.program.abstract_program import AbstractProgram
from tests.models.small_lm import BATCH, LENGTH, VOCAB_SIZE, training_program
from tests.models.small_transformers import FAMILIES, loss_program

TENSOR = "heads:model;d_ff:model;vocab:model"
SEQUENCE_PARALLEL = {"layout": f"{TENSOR};residual_length:model", "sequence_parallel": True}
MODEL = ("allreduce", ("model",))
DATA = ("allreduce", ("data",))
ACTIVATIONS = BATCH * LENGTH * 16 * 4  # bytes of float32 [batch, length, d_model]
TOKENS = BATCH * LENGTH * 4  # bytes of one float32 per token
# Family -> all-reduces over the model axis forward and backward, as (fixed, per layer). Forward:
# one for each embedding, two for the loss of a split vocabulary, one per block. Backward: one per
# block, one for the gradient w.r.t. the input of the logits, one for the encoder's output that
# cross-attention reads, and one for the gradient's norm.
REDUCTIONS = {
    "moe": ((3, 2), (2, 2)),
    "masked": ((3, 2), (2, 2)),
    "classes": ((1, 2), (1, 2)),
    "encdec": ((4, 5), (3, 5)),
}


def collectives(name, mesh_shape, layout, backward=True, **changes):
    """Returns the number of collectives, by kind and axes."""
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
    counted = collectives(name, "model:4", TENSOR, backward=False, num_hidden_layers=1)
    assert counted == {MODEL: first + each}
    both = first + first_back + 2 * (each + each_back)
    counted = collectives(name, "model:4", TENSOR, num_hidden_layers=2)
    assert counted == {MODEL: both}


def num_parameters(layers, d_model=16, d_ff=32, heads=4, d_kv=8):
    attention = 4 * d_model * heads * d_kv + d_model
    feed_forward = 2 * d_model * d_ff + d_model
    return (VOCAB_SIZE + LENGTH + 1) * d_model + layers * (attention + feed_forward)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_split_layer_costs_two_reductions_forward_and_two_backward(layers):
    """Forward, each block's output is all-reduced; backward, the gradient w.r.t. its input.

    Further all-reduces: the embedded tokens, two in the cross-entropy (three numbers per token),
    the gradient w.r.t. the input of the logits, and the gradient's norm.
    """
    program = training_program("model:4", num_hidden_layers=layers)
    forward = 3 + 2 * layers
    wanted = (2 + 4 * layers) * ACTIVATIONS + 3 * TOKENS + 4
    assert program.collectives() == {MODEL: (forward + 2 * layers + 2, wanted)}


@pytest.mark.parametrize("layers", [1, 2])
def test_a_length_split_between_blocks_makes_a_gather_and_a_scatter_of_each_reduction(layers):
    """Each all-reduce of activations becomes a reduce-scatter and an all-gather.

    The remaining all-reduces are small: the cross-entropy, and the gradients of norms and
    positions, which each processor computes from its part of the length.
    """
    program = training_program("model:4", num_hidden_layers=layers, **SEQUENCE_PARALLEL)
    moved = program.collectives()
    blocks = 2 * layers
    scattered = moved["reducescatter", ("model",)]
    gathered = moved["allgather", ("model",)]
    assert scattered == (2 + 2 * blocks, (2 + 2 * blocks) * ACTIVATIONS)
    assert gathered == (2 + 2 * blocks, (2 + 2 * blocks) * ACTIVATIONS // 4)
    count, size = moved[MODEL]
    assert count <= 5 and size < ACTIVATIONS


@pytest.mark.slow
@pytest.mark.parametrize("token_shift", [False, True])
def test_for_head_tail_order_only_ids_move_whatever_the_number_of_layers(token_shift):
    """All later activations have the order of the ids, until the loss.

    Token shift also moves one end of each slice of the keys and values, and of their gradients.
    """
    one, two = (
        training_program(
            "seq:2",
            layout="length:seq",
            num_hidden_layers=layers,
            attention_method="blockwise",
            token_shift=token_shift,
        ).collectives()["permute", ("seq",)]
        for layers in (1, 2)
    )
    moved = 4 if token_shift else 0
    assert (two[0] - one[0], two[1] - one[1]) == (moved, moved * 2 * ACTIVATIONS // LENGTH)
    assert token_shift or one[1] < 2 * TOKENS


def test_biases_after_the_matrices_are_added_to_what_is_scattered():
    scattered = [
        loss_program(
            FAMILIES["lm"], "model:4", with_gradients=False, use_bias=use_bias, **SEQUENCE_PARALLEL
        ).collectives()
        for use_bias in (False, True)
    ]
    assert scattered[0] == scattered[1]


@pytest.mark.parametrize("layers", [1, 2])
def test_data_parallel_training_reduces_each_gradient_once_and_all_in_one_go(layers):
    """A second all-reduce has two numbers: the sum of the losses and the number of tokens."""
    program = training_program("data:4", num_hidden_layers=layers)
    assert program.collectives() == {DATA: (2, 4 * num_parameters(layers) + 8)}


def test_small_gradients_are_reduced_in_buckets_while_others_are_computed(monkeypatch):
    """The all-reduce of a bucket starts as soon as a gradient has filled the bucket."""
    monkeypatch.setattr(deferred_sums, "BUCKET", 8192)
    program = training_program("data:2", num_hidden_layers=4)
    _, *buckets, rest = [c for c in program.collective_log() if c.kind == "allreduce"]
    assert sum(c.bytes for c in (*buckets, rest)) == 4 * num_parameters(4)
    assert len(buckets) > 3 and all(8192 <= c.bytes < 2 * 8192 for c in buckets)
    layers = [c.operation[:8] for c in buckets]
    assert layers[0] == "layer_03" and layers == sorted(layers, reverse=True)


def test_large_gradients_are_reduced_alone():
    """Above a megabyte, copying to a common buffer costs as much as a collective."""
    program = training_program("data:2", num_hidden_layers=1, d_ff=32768)
    large = 2  # the two feed-forward matrices, of 2 MiB each
    assert program.collectives()[DATA] == (2 + large, 4 * num_parameters(1, d_ff=32768) + 8)
