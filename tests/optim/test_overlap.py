"""When gradients are reduced, and variables updated, in a step."""

import re

import pytest

import t2tp
from tests.optim.sharded_programs import make

LARGE = {"d_model": 128, "d_ff": 2304, "num_hidden_layers": 3}  # Weights of more than 1 MiB.


def ancestors(op, known):
    """Names of the operations that an operation waits for."""
    found, waiting = set(), [op]
    while waiting:
        for before in (*(x.op for x in waiting[-1].inputs), *waiting.pop().control_inputs):
            if before.name not in found:
                found.add(before.name)
                waiting.append(before)
    return found & known


@pytest.mark.parametrize(
    ("stage", "collective"), [(0, "CollectiveReduceV2"), (1, "CollectiveAllToAllV2")]
)
def test_a_layer_s_gradients_are_summed_before_those_of_earlier_layers_are_computed(
    stage, collective
):
    program = make("lm", "data", stage, kind=t2tp.Program, **LARGE)
    operations = program.trace().graph.get_operations()
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
    waits_for = ancestors(first_large, set().union(*backward.values()))
    assert waits_for & backward[2]
    assert not waits_for & (backward[0] | backward[1])


@pytest.mark.parametrize("optimizer", ["adam", "lion", "sgd"])
def test_nothing_of_an_update_is_computed_before_its_gradient(optimizer):
    """It would be kept until then, for all variables."""
    program = make("lm", "data", 1, optimizer, kind=t2tp.Program, weight_decay=0.1)
    operations = program.trace().graph.get_operations()
    of_gradients = {op.name for op in operations if "gradients" in op.name}
    found = [
        op
        for op in operations
        if re.match(rf"{optimizer}\w*/", op.name)
        and op.type not in ("Const", "ReadVariableOp")
        and all(x.shape.num_elements() > 1 for x in op.outputs)
    ]
    assert len(found) > 10
    assert [op.name for op in found if not ancestors(op, of_gradients)] == []
