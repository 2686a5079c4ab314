"""The key/value cache: each device holds its part, once."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys

import pytest

from tests.decoding.slices_of_a_cache import PLACE_BYTES, decoding_program

DEVICES, SHORT, LONG = 4, 64, 8192


@pytest.mark.parametrize(("options", "beam"), [("beam_size=1", 1), ("beam_size=3", 3)])
def test_the_loop_carries_what_the_shapes_say(options, beam):
    """On 2x2: the keys and values of half of the rows, of half of the heads."""
    (loop,) = (
        operation
        for operation in decoding_program(SHORT, options).trace().graph.get_operations()
        if operation.type in ("While", "StatelessWhile")
    )
    shapes = [tensor.shape.as_list() for tensor in loop.inputs]
    carried = sum(4 * math.prod(shape) for shape in shapes if len(shape) >= 4)
    assert carried == SHORT * PLACE_BYTES // DEVICES * beam


def peak(length: int) -> int:
    """The most memory of any of four processes with a device each, on 2x2."""
    launch = ["t2tp.trainer.cli", "t2tp_launch", "-n", str(DEVICES), sys.executable, "-m"]
    program = ["tests.decoding.slices_of_a_cache", str(length)]
    done = subprocess.run(
        [sys.executable, "-m", *launch, *program], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = [json.loads(line) for line in re.findall(r"\{\"peak.*\}", done.stdout)]
    assert len(said) == DEVICES
    return max(each["peak"] for each in said)


@pytest.mark.slow
def test_a_longer_cache_costs_each_device_its_part():
    """A quarter of 537 MB: steps write into it, and nobody holds a second copy of it."""
    share = (LONG - SHORT) * PLACE_BYTES / DEVICES
    assert 0.9 * share < peak(LONG) - peak(SHORT) < 1.4 * share
