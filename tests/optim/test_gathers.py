"""Weights that are sharded at rest are gathered a bounded number of layers ahead of their use."""

import re

import pytest

import t2tp
from tests.optim.sharded_programs import make

LAYERS = 5


def graph_of_a_step(prefetch):
    """TensorFlow's graph of a training step in stage 3."""
    changes = {"zero_prefetch": prefetch, "num_hidden_layers": LAYERS, "kind": t2tp.Program}
    return make("lm", "data", 3, **changes).trace().graph


def layers_needed(op):
    """The layers whose matrix products have to be done before an operation, forward and back."""
    seen, new = set(), [op]
    while new:
        op = new.pop()
        if op not in seen:
            seen.add(op)
            new += [x.op for x in op.inputs] + list(op.control_inputs)
    products = [op.name for op in seen if "MatMul" in op.type]
    forward, backward = (
        {layer_of(name) for name in products if ("gradients" in name) == is_backward} - {None}
        for is_backward in (False, True)
    )
    return forward, backward


def layer_of(name):
    """The number of the layer that an operation belongs to; None: of no layer."""
    found = re.match(r"layer_(\d+)/", name)
    return int(found[1]) if found else None


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_gathers_run_so_many_layers_ahead(prefetch):
    gathers = [
        op for op in graph_of_a_step(prefetch).get_operations() if op.type == "CollectiveGatherV2"
    ]
    for is_backward in (False, True):
        found = [op for op in gathers if ("gradients" in op.name) == is_backward]
        layers = [layer_of(op.name) for op in found]
        # Small weights of a layer share a collective.
        assert sorted(n for n in layers if n is not None) == list(range(LAYERS))
        for op in found:
            layer = layer_of(op.name)
            if layer is None:
                continue
            forward, backward = layers_needed(op)
            if is_backward:
                assert backward == set(range(layer + 1 + prefetch, LAYERS))
            else:
                assert forward == set(range(layer - prefetch))
