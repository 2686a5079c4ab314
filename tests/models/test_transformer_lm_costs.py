"""What the language model costs: parameters, and collectives by layer."""

import pytest

from t2tp.lowering import deferred_sums
from tests.models.small_lm import BATCH, LENGTH, VOCAB_SIZE, loss_program, training_program

MODEL = ("allreduce", ("model",))
DATA = ("allreduce", ("data",))
ACTIVATIONS = BATCH * LENGTH * 16 * 4  # bytes of float32 [batch, length, d_model]
TOKENS = BATCH * LENGTH * 4  # bytes of a float32 a token


def num_parameters(
    layers, vocab=VOCAB_SIZE, d_model=16, d_ff=32, heads=4, d_kv=8, max_length=LENGTH
):
    attention = 4 * d_model * heads * d_kv + d_model
    feed_forward = 2 * d_model * d_ff + d_model
    return (VOCAB_SIZE + LENGTH + 1) * d_model + layers * (attention + feed_forward)


@pytest.mark.parametrize("layers", [1, 3])
def test_parameters_are_as_many_as_the_formula_says(layers):
    program = training_program(num_hidden_layers=layers)
    trainable = [v.spec for v in program.variables if v.spec.trainable]
    assert sum(spec.shape.size for spec in trainable) == num_parameters(layers)
    moments = [v.spec for v in program.variables if not v.spec.trainable]
    assert sum(spec.shape.size for spec in moments) == 2 * num_parameters(layers)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_split_layer_costs_two_reductions_forward_and_two_backward(layers):
    """Forward, of what attention and feed-forward add; backward, of the gradients w.r.t. what
    enters them. Besides: one of the embedding's rows, two of the cross-entropy (three numbers a
    token), one of the gradient w.r.t. what the split vocabulary is multiplied by, and a number for
    the gradient's norm."""
    program = training_program("model:4", num_hidden_layers=layers)
    forward = 3 + 2 * layers
    wanted = (2 + 4 * layers) * ACTIVATIONS + 3 * TOKENS + 4
    assert program.collectives() == {MODEL: (forward + 2 * layers + 2, wanted)}


@pytest.mark.parametrize("layers", [1, 2])
def test_a_length_split_between_blocks_makes_a_gather_and_a_scatter_of_each_reduction(layers):
    """Forward: the embedding's rows are scattered, each block gathers what it gets and scatters
    what it adds, and logits are made of all. Backward the other way round. What remains: the
    cross-entropy's, and the gradients of norms and positions, each of which sees its part."""
    program = training_program(
        "model:4",
        layout="heads:model;d_ff:model;vocab:model;residual_length:model",
        num_hidden_layers=layers,
        sequence_parallel=True,
    )
    moved = program.collectives()
    blocks = 2 * layers
    scattered = moved["reducescatter", ("model",)]
    gathered = moved["allgather", ("model",)]
    assert scattered == (2 + 2 * blocks, (2 + 2 * blocks) * ACTIVATIONS)
    assert gathered == (2 + 2 * blocks, (2 + 2 * blocks) * ACTIVATIONS // 4)
    count, size = moved[MODEL]
    assert count <= 5 and size < ACTIVATIONS


def test_for_head_tail_order_only_ids_move_whatever_the_number_of_layers():
    """All that is computed from them is in this order until the loss."""
    moved = [
        training_program(
            "seq:2", layout="length:seq", num_hidden_layers=layers, attention_method="blockwise"
        ).collectives()["permute", ("seq",)]
        for layers in (1, 2)
    ]
    assert moved[0] == moved[1]
    assert moved[0][1] < 2 * TOKENS


def test_biases_after_the_matrices_are_added_to_what_is_scattered():
    layout = "heads:model;d_ff:model;vocab:model;residual_length:model"
    scattered = [
        loss_program(
            "model:4",
            training=True,
            layout=layout,
            num_hidden_layers=1,
            sequence_parallel=True,
            use_bias=use_bias,
        ).collectives()
        for use_bias in (False, True)
    ]
    assert scattered[0] == scattered[1]


@pytest.mark.parametrize("layers", [1, 2])
def test_data_parallel_training_reduces_each_gradient_once_and_all_in_one_go(layers):
    """Besides: two numbers together, the sum of the losses and how many tokens it is of."""
    program = training_program("data:4", num_hidden_layers=layers)
    assert program.collectives() == {DATA: (2, 4 * num_parameters(layers) + 8)}


def test_small_gradients_are_reduced_in_buckets_while_others_are_computed(monkeypatch):
    """As they become ready: a bucket is asked for by the gradient that fills it."""
    monkeypatch.setattr(deferred_sums, "BUCKET", 8192)
    program = training_program("data:2", num_hidden_layers=4)
    _, *buckets, rest = [c for c in program.collective_log() if c.kind == "allreduce"]
    assert sum(c.bytes for c in (*buckets, rest)) == 4 * num_parameters(4)
    assert len(buckets) > 3 and all(8192 <= c.bytes < 2 * 8192 for c in buckets)
    layers = [c.operation[:8] for c in buckets]
    assert layers[0] == "layer_03" and layers == sorted(layers, reverse=True)


def test_large_gradients_are_reduced_alone():
    """Above a megabyte a copy into a common buffer costs what a collective costs."""
    program = training_program("data:2", num_hidden_layers=1, d_ff=32768)
    large = 2  # The two matrices of the feed-forward, of 2 MiB each.
    assert program.collectives()[DATA] == (2 + large, 4 * num_parameters(1, d_ff=32768) + 8)
