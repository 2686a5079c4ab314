"""Each device holds its part of the key/value cache once."""

import math

import pytest

from tests.decoding.slices_of_a_cache import PLACE_BYTES, decoding_program
from tests.warm_processes import printed, tf_configs

DEVICES, SHORT, LONG = 4, 64, 8192


@pytest.mark.parametrize(("options", "beam"), [("beam_size=1", 1), ("beam_size=3", 3)])
def test_the_loop_carries_what_the_shapes_say(options, beam):
    """On a 2x2 mesh, a device has the keys and values of half the heads of half the rows."""
    (loop,) = (
        operation
        for operation in decoding_program(SHORT, options).trace().graph.get_operations()
        if operation.type in ("While", "StatelessWhile")
    )
    shapes = [tensor.shape.as_list() for tensor in loop.inputs]
    carried = sum(4 * math.prod(shape) for shape in shapes if len(shape) >= 4)
    assert carried == SHORT * PLACE_BYTES // DEVICES * beam


@pytest.mark.slow
def test_a_longer_cache_costs_each_device_its_part(tmp_path):
    """A part is a quarter of 537 MB; steps write into it, so no second copy exists."""
    share = (LONG - SHORT) * PLACE_BYTES / DEVICES
    target, lengths = "tests.decoding.slices_of_a_cache:main", [str(SHORT), str(LONG)]
    grown = printed(target, [lengths] * DEVICES, tf_configs(DEVICES), tmp_path / "printed")
    assert 0.9 * share < max(map(int, grown)) < 1.4 * share
