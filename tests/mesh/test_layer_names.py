"""Names of identical layers are grouped."""

import pytest

from t2tp.mesh.layer_names import common_name, group_layers

NAMES = {
    "layer_{00..02}/q": ["layer_00/q", "layer_01/q", "layer_02/q"],
    "layer_{0,2}/q": ["layer_0/q", "layer_2/q"],
    "layer_{1,3,5,7,...}/q": [f"layer_{n}/q" for n in (1, 3, 5, 7, 9)],
    "layer_{9..10}/q": ["layer_9/q", "layer_10/q"],
    "stage_{0..1}/layer_4/q": ["stage_0/layer_4/q", "stage_1/layer_4/q"],
    "layer_{0..1}/einsum_3/gradients/einsum_1": [
        "layer_0/einsum_3/gradients/einsum_1",
        "layer_1/einsum_3/gradients/einsum_1",
    ],
    "alone_5/q_7": ["alone_5/q_7"],
}


@pytest.mark.parametrize("expected", NAMES)
def test_numbers_of_scopes_become_one(expected):
    (group,) = group_layers(NAMES[expected], str, lambda _: None)
    assert group.name == expected == common_name(NAMES[expected])
    assert len(group.members) == len(NAMES[expected])


APART = [
    ["einsum_1", "einsum_2"],
    ["layer_0/w_1", "layer_0/w_2"],
    ["layer_0/einsum_1/gradients/add", "layer_0/einsum_2/gradients/add"],
    ["layer_0/q", "block_0/q"],
]


@pytest.mark.parametrize("names", APART)
def test_other_names_stay_apart(names):
    assert [group.name for group in group_layers(names, str, lambda _: None)] == names


def test_what_differs_otherwise_stays_apart():
    groups = group_layers(
        ["layer_0/q", "layer_1/q", "layer_2/q"], str, lambda name: name == "layer_1/q"
    )
    assert [group.name for group in groups] == ["layer_{0,2}/q", "layer_1/q"]
    assert [group.times for group in groups] == [" x 2", ""]
