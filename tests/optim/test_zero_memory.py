"""In stage 3 a process needs memory for its part of each layer, and for a few whole layers."""

from __future__ import annotations

import json

import pytest

from tests.optim.sharded_layers import LAYER_BYTES
from tests.warm_processes import printed, tf_configs

PROCESSES, FEW, MANY = 2, 4, 12


@pytest.mark.slow
def test_a_layer_more_costs_a_process_its_part_of_state_and_gradient(tmp_path):
    """With Adam, clipping and weight decay: four numbers a weight, of which one is the gradient."""
    arguments = [[str(PROCESSES), "adam", str(FEW), str(MANY)]] * PROCESSES
    target = "tests.optim.sharded_layers:main"
    found = printed(target, arguments, tf_configs(PROCESSES), tmp_path / "printed", seconds=400)
    for few, many in map(json.loads, found):
        assert many["losses"][-1] < many["losses"][0]
        share = (MANY - FEW) * LAYER_BYTES * 4 / PROCESSES
        assert 0.9 * share < many["peak"] - few["peak"] < 1.15 * share
