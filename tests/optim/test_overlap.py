"""The order within a step: when weights are gathered, gradients reduced, variables updated."""

import re

import pytest

import t2tp
from tests.optim.sharded_programs import make

LARGE = {"d_model": 128, "d_ff": 2304, "num_hidden_layers": 3}  # weights of more than 1 MiB
LAYERS = 5


def operations_of(*arguments, **changes):
    """Returns the operations of the TensorFlow graph of a training step."""
    return make("lm", *arguments, kind=t2tp.Program, **changes).trace().graph.get_operations()


def ancestors(op):
    """Returns the names of the operations that an operation waits for."""
    found, waiting = set(), [op]
    while waiting:
        for before in (*(x.op for x in waiting[-1].inputs), *waiting.pop().control_inputs):
            if before.name not in found:
                found.add(before.name)
                waiting.append(before)
    return found


def layer_of(name):
    """Returns the number of an operation's layer, or None."""
    found = re.match(r"layer_(\d+)/", name)
    return int(found[1]) if found else None


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_weights_at_rest_are_gathered_a_number_of_layers_ahead(prefetch):
    operations = operations_of("data", 3, zero_prefetch=prefetch, num_hidden_layers=LAYERS)
    gathers = [op for op in operations if op.type == "CollectiveGatherV2"]
    products = {op.name for op in operations if "MatMul" in op.type}
    for is_backward in (False, True):
        found = [op for op in gathers if ("gradients" in op.name) == is_backward]
        by_layer = {layer_of(op.name): op for op in found if layer_of(op.name) is not None}
        # A layer's small weights share a collective.
        assert len(by_layer) == LAYERS == sum(layer_of(op.name) is not None for op in found)
        for layer, op in by_layer.items():
            before = {name for name in ancestors(op) & products if layer_of(name) is not None}
            needed = {layer_of(name) for name in before if ("gradients" in name) == is_backward}
            wanted = range(layer + 1 + prefetch, LAYERS) if is_backward else range(layer - prefetch)
            assert needed == set(wanted)


COLLECTIVES = [(0, "CollectiveReduceV2"), (1, "CollectiveAllToAllV2")]


@pytest.mark.parametrize(("stage", "collective"), COLLECTIVES)
def test_a_layer_s_gradients_are_summed_before_those_of_earlier_layers_are_computed(
    stage, collective
):
    operations = operations_of("data", stage, **LARGE)
    backward = {
        layer: {op.name for op in operations if f"layer_0{layer}/" in op.name and "grad" in op.name}
        for layer in range(3)
    }
    assert all(backward.values())
    first_large = next(
        op
        for op in operations
        if op.type == collective and op.inputs[0].shape.num_elements() >= 128 * 2304
    )
    waits_for = ancestors(first_large)
    assert waits_for & backward[2]
    assert not waits_for & (backward[0] | backward[1])


@pytest.mark.parametrize("optimizer", ["adam", "lion", "sgd"])
def test_nothing_of_an_update_is_computed_before_its_gradient(optimizer):
    """Otherwise parts of all updates would be in memory until the gradients are known."""
    operations = operations_of("data", 1, optimizer, weight_decay=0.1)
    of_gradients = {op.name for op in operations if "gradients" in op.name}
    found = [
        op
        for op in operations
        if re.match(rf"{optimizer}\w*/", op.name)
        and op.type not in ("Const", "ReadVariableOp")
        and all(x.shape.num_elements() > 1 for x in op.outputs)
    ]
    assert len(found) > 10
    assert [op.name for op in found if not ancestors(op) & of_gradients] == []
