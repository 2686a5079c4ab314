"""Ring attention matches one device, which computes all scores at once, up to float64 rounding."""

import math
from collections import Counter

import pytest

from t2tp.layout_check.double_program import DoubleProgram
from tests.ops.attention.attention_cases import make_inputs, make_ours, program_of
from tests.ops.on_mesh import assert_close, with_gradients

MASKED = {"causal": True, "segments": True, "bias": True}
DROPPED = {**MASKED, "dropout_rate": 0.3}
# Mesh, layout, options, and sizes of inputs. Some slices or halves have 3 or 5 positions, so
# that the next ones begin at odd positions.
CASES = {
    "four devices": ("seq:4", "length:seq", DROPPED, {"length": 24}),
    "not causal": ("seq:3", "length:seq", {**DROPPED, "causal": False}, {"length": 15}),
    "window behind": ("seq:3", "length:seq", {**MASKED, "window": 5}, {"length": 18}),
    "window both ways": ("seq:2", "length:seq", {"segments": True, "window": 4}, {"length": 14}),
    "joint axes": ("data:2;seq:2", "length:data+seq", MASKED, {"length": 24}),
    "batch, shared heads": (
        "data:2;seq:2",
        "batch:data;length:seq",
        DROPPED,
        {"length": 12, "kv_heads": 2},
    ),
    "shared heads, selected": (
        "seq:2;model:2",
        "length:seq;heads:model",
        MASKED,
        {"length": 12, "kv_heads": 2},
    ),
    "a memory of its own": (
        "seq:2",
        "length:seq;memory:seq",
        {"segments": True, "bias": True},
        {"length": 12, "memory": 14},
    ),
    "a memory over one of the axes of the length": (
        "a:2;b:2",
        "length:a+b;memory:b",
        {"causal": True, "segments": True, "own_segments": False},
        {"length": 12, "memory": 12},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_one_device(name):
    mesh_shape, layout, options, sizes = CASES[name]
    inputs = make_inputs(batch=2, d_kv=4, **sizes, **options)
    ours = make_ours("ring", block_size=2, **options)
    values = with_gradients(ours, inputs, mesh_shape, layout, program_type=DoubleProgram)
    wanted = with_gradients(make_ours("dense", **options), inputs, program_type=DoubleProgram)
    assert_close(values, wanted, 1e-12)


def ring_program(count, method="ring"):
    """Returns a program of attention with slices of 8 positions, and its gradients."""
    length, options = f"length:{8 * count}", {"causal": True, "method": method}
    return program_of(length, length, f"seq:{count}", "length:seq", segments=True, **options)


@pytest.mark.slow
def test_a_slice_goes_once_round_and_its_gradients_come_home():
    """Sends k and v n - 1 times forward and backward, and their gradients n times."""
    n, kv = 4, 2 * 4 * (2 * 4 * 8 * 4)
    segments = 4 * 2 * 8
    # Halves are exchanged for head-tail order: the features, y, and the gradients, because the
    # caller uses consecutive order.
    exchanged = 3 * kv // 4 + segments // 2 + 4 * kv // 4
    (kind, axes), (_, moved) = next(iter(ring_program(n).collectives().items()))
    assert (kind, axes) == ("permute", ("seq",))
    assert len(ring_program(n).collectives()) == 1
    round_trips = 2 * (n - 1) * (kv + segments) + n * kv
    assert moved == round_trips + exchanged


def tensor_sizes(graph):
    """Returns the sizes in bytes of all tensors but constants in a graph and its functions."""
    inner = [graph._get_function(name).graph for name in graph._functions]
    return [
        math.prod(x.shape.as_list()) * x.dtype.size
        for each in [graph, *inner]
        for op in each.get_operations()
        for x in op.outputs
        if op.type != "Const" and x.shape.is_fully_defined()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ring", "blockwise"])
def test_a_ring_holds_as_much_on_any_number_of_devices(method):
    """With 8 devices, a ring's tensors are as large as with 2; gathered tensors grow fourfold."""
    few, many = (
        Counter(tensor_sizes(ring_program(count, method=method).trace().graph)) for count in (2, 8)
    )
    # The keys of a slice are among the tensors.
    assert few[2 * 4 * 8 * 4 * 4] > 0
    if method == "ring":
        assert many == few
    else:
        assert max(many) == 4 * max(few)
