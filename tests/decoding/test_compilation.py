"""When decoding is compiled by XLA."""

from __future__ import annotations

import math

import pytest

from t2tp.decoding import compilation
from t2tp.decoding.compilation import should_compile
from t2tp.mesh.layout import Layout

BATCH_SIZE = 2


@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize(
    ("mesh_shape", "num_prompts", "given", "expected"),
    [
        ("", 16, {}, True),
        ("", 15, {}, False),
        ("", math.inf, {}, True),
        ("", 16, {"num_weights": 124_000_000}, False),  # matmuls take all the time
        ("data:2;model:2", 64, {}, True),  # several devices take as many times as long to compile
        ("data:2;model:2", 63, {}, False),
        ("data:2;model:2", 64, {"num_processes": 2}, False),
        ("data:4", 64, {}, False),  # they share nothing
    ],
)
def test_much_is_decoded_compiled(mesh_shape, num_prompts, given, expected, has_gpu, monkeypatch):
    monkeypatch.setattr(compilation, "has_gpu", lambda: has_gpu)
    layout = Layout(mesh_shape, "batch:data;heads:model")
    values = {"num_weights": 1_000_000, **given}
    found = should_compile(layout, num_prompts, BATCH_SIZE, **values)
    assert found == (expected and not (has_gpu and mesh_shape))
