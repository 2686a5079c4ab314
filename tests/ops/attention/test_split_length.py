"""Attention with split length and memory matches one device on any mesh."""

import numpy as np
import pytest

from tests.ops.attention.attention_cases import make_ours, program_of
from tests.ops.on_mesh import with_gradients


def collectives(layout, backward, memory="length:8", **options):
    """Returns (kind, axes) -> number and bytes of the collectives."""
    arguments = ("length:8", memory, "a:2;b:2", layout)
    return program_of(*arguments, with_gradients=backward, **options).collectives()


def test_keys_and_values_are_gathered_and_their_gradients_scattered():
    half = 4 * 2 * 4 * 4 * 4
    gather, scatter = ("allgather", ("a",)), ("reducescatter", ("a",))
    assert collectives("length:a", False) == {gather: (2, 2 * half)}
    assert collectives("length:a", True) == {gather: (4, 4 * half), scatter: (2, 4 * half)}
    # The heads that b splits are not gathered.
    split = collectives("length:a;heads:b", True)
    assert split == {gather: (4, 2 * half), scatter: (2, 2 * half)}


def test_only_a_memory_that_is_split_is_gathered():
    whole = 4 * 2 * 4 * 8 * 4
    memory = "memory:8"
    assert collectives("length:a", False, memory) == {}
    assert collectives("length:a", True, memory) == {("allreduce", ("a",)): (1, 2 * whole)}
    gathered = {("allgather", ("b",)): (4, 2 * whole)}
    assert collectives("memory:b", True, memory) == gathered
    both = {**gathered, ("allreduce", ("a",)): (1, whole)}
    assert collectives("length:a;memory:b", True, memory) == both


def test_segments_are_gathered_once_for_all_layers():
    ((count, _),) = collectives("length:a", False, segments=True, layers=3).values()
    assert count == 2 * 3 + 1


UNSEEN = [({"causal": True}, slice(8, None)), ({"window": 5}, slice(12, None))]


@pytest.mark.parametrize(("options", "unseen"), UNSEEN, ids=["causal", "window"])
def test_what_no_query_of_a_slice_sees_is_not_computed(options, unseen):
    """The first of three slices skips unseen NaNs, which multiplying by 0 would not."""
    array = np.random.default_rng(0).normal(size=(1, 24, 4))
    inputs = {name: ("heads:1;length:24;d_kv:4", array.copy()) for name in "qkv"}
    for name in "kv":
        inputs[name][1][:, unseen] = np.nan
    ours = make_ours("blockwise", **options)
    values = with_gradients(ours, inputs, "seq:3", "length:seq")
    wanted = with_gradients(ours, {name: (s, array) for name, (s, _) in inputs.items()})
    for name in ("y", "d_q"):
        np.testing.assert_allclose(values[name][0, :8], wanted[name][0, :8], atol=1e-5)
        assert np.isnan(values[name][0, 16:]).all()
