"""In stage 3, a step needs a few whole layers at a time, and nothing needs all layers."""

import json

import pytest

from tests.optim.sharded_layers import LAYER_BYTES, MATRIX_BYTES
from tests.warm_processes import printed, tf_configs

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
