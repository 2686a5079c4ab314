"""The floating-point operations of products, counted by hand."""

from __future__ import annotations

import pytest

from t2tp import mtf
from t2tp.ops.attention.api import attention
from t2tp.ops.attention.local_attention import local_attention
from t2tp.ops.conv.convolution import convolution
from t2tp.ops.flops import matmul_flops
from t2tp.program.abstract_program import AbstractProgram
from t2tp.program.program import Feature


def count(build, **shapes: str) -> int:
    """Of the operations that `build(**tensors)` makes."""
    found = []

    def step(mesh, features):
        y = build(**features)
        found.append(matmul_flops(mesh.graph.operations))
        return {"y": y}

    AbstractProgram(step, {name: Feature(shape) for name, shape in shapes.items()})
    return found[0]


def test_a_product_of_matrices():
    def build(x, w):
        return mtf.einsum([x, w], reduced_dims=[mtf.Dimension("d_in", 5)])

    assert count(build, x="batch:3;d_in:5", w="d_in:5;d_out:7") == 2 * 3 * 5 * 7


def test_what_works_element_by_element_is_no_product():
    assert count(lambda x: mtf.reduce_sum(x * x) + 1.0, x="batch:3;d_in:5") == 0


def test_a_convolution():
    shapes = {"x": "batch:2;height:8;width:6;channels:3", "w": "kh:3;kw:3;channels:3;filters:5"}
    flops = count(lambda x, w: convolution(x, w, stride=2), **shapes)
    assert flops == 2 * (2 * 4 * 3) * 5 * (3 * 3 * 3)


@pytest.mark.parametrize(("window", "seen"), [(None, 10), (4, 4)])
def test_attention_has_two_products_of_each_query_with_what_it_sees(window, seen):
    q = "batch:2;heads:4;length:10;d_kv:8"
    k = "batch:2;heads:2;length:10;d_kv:8"

    def build(q, k, v):
        return attention(q, k, v, causal=True, window=window)

    assert count(build, q=q, k=k, v=k) == 2 * 2 * (2 * 4 * 10) * 8 * seen


def test_local_attention_sees_two_blocks_of_a_sequence_and_five_of_a_image():
    space = [mtf.Dimension("length", 12)]
    x = "batch:2;length:12;d_kv:4"
    flops = count(lambda q, k, v: local_attention(q, k, v, space, [3]), q=x, k=x, v=x)
    assert flops == 4 * (2 * 12 * 4) * 2 * 3
    space = [mtf.Dimension("height", 4), mtf.Dimension("width", 6)]
    x = "batch:2;height:4;width:6;d_kv:4"
    flops = count(lambda q, k, v: local_attention(q, k, v, space, [2, 3]), q=x, k=x, v=x)
    assert flops == 4 * (2 * 4 * 6 * 4) * 5 * 2 * 3
