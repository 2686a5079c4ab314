"""When XLA compiles decoding."""

import math

import pytest

from t2tp.decoding.options import should_compile
from t2tp.mesh.layout import Layout

BATCH_SIZE = 2


CASES = [
    ("", 16, 1_000_000, True),
    ("", 15, 1_000_000, False),
    ("", math.inf, 1_000_000, True),
    ("", 16, 124_000_000, False),  # matmuls dominate
    ("data:2;model:2", 64, 1_000_000, False),
]


@pytest.mark.parametrize(("mesh_shape", "num_prompts", "num_weights", "expected"), CASES)
def test_much_is_decoded_compiled(mesh_shape, num_prompts, num_weights, expected):
    layout = Layout(mesh_shape, "batch:data;heads:model")
    assert should_compile(layout, num_prompts, BATCH_SIZE, num_weights) == expected
