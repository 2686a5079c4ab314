"""Each family of transformers has the loss and gradients of one device on any mesh.

The tests of `tests/huggingface` compare the families with `transformers`.
"""

import functools

import numpy as np
import pytest

from t2tp.mesh.layout import LayoutError
from tests.models.small_transformers import (
    ALL_DROPOUT,
    BERTS,
    FAMILIES,
    LAYOUTS,
    LENGTH,
    MEGATRON,
    assert_close,
    loss_program,
)

ALL_FAMILIES = {**FAMILIES, **BERTS}
# Each layout with some families, and each family with some layouts.
SOME_LAYOUTS = {
    "lm": ["both", "tensor", "three axes", "context and both"],
    "encdec": ["data", "features", "context and both"],
    "classes": ["data", "context"],
    "masked": ["both", "three axes"],
    "moe": ["data", "features", "experts", "context"],
    "moe_encdec": ["both", "experts"],
    "moe_classes": ["features", "context and both"],
    "bert_masked": ["both", "features"],
    "bert_classes": ["context"],
}
CASES = [(name, layout) for name, layouts in SOME_LAYOUTS.items() for layout in layouts]


@functools.cache
def on_one_device(name):
    """Returns loss, sums and gradients of the family on one device."""
    family = ALL_FAMILIES[name]
    return dict(loss_program(family)(family.batch()))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), CASES)
def test_any_layout_gives_the_loss_and_all_gradients_of_one_device(name, layout):
    family = ALL_FAMILIES[name]
    split = loss_program(family, *LAYOUTS[layout])(family.batch())
    assert_close(split, on_one_device(name), 1e-5)


SEQUENCE_PARALLEL = ("data:2;model:2", f"{MEGATRON};residual_length:model")
CONTEXT_AND_SEQUENCE = (
    "seq:2;model:2",
    "length:seq;residual_length:seq+model;heads:model;d_ff:model;vocab:model",
)


EXPERTS_OVER_LENGTH = (
    "expert:2;model:2",
    "length:expert;length_groups:expert;experts:expert;heads:model;d_ff:model",
)
BETWEEN_BLOCKS = {"sequence_parallel": True}
# Family, layout, changes of hparams, and changes that only the split model has.
SPLIT_LENGTHS = [
    ("masked", SEQUENCE_PARALLEL, {}, BETWEEN_BLOCKS),
    ("moe_encdec", SEQUENCE_PARALLEL, {}, BETWEEN_BLOCKS),
    ("encdec", CONTEXT_AND_SEQUENCE, {}, BETWEEN_BLOCKS),
    ("encdec", SEQUENCE_PARALLEL, ALL_DROPOUT, BETWEEN_BLOCKS),
    ("moe_encdec", EXPERTS_OVER_LENGTH, {"moe_group_size": 6}, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout", "changes", "only_split"), SPLIT_LENGTHS)
def test_a_split_length_changes_nothing(name, layout, changes, only_split):
    family = FAMILIES[name]
    split = loss_program(family, *layout, **changes, **only_split)(family.batch())
    whole = loss_program(family, **changes)(family.batch()) if changes else on_one_device(name)
    assert_close(split, whole, 1e-5)


@pytest.mark.parametrize("rules", ["residual_length:model", "residual_length:model+seq", ""])
def test_a_length_that_would_be_gathered_between_blocks_is_refused(rules):
    layout = f"length:seq;heads:model;d_ff:model;vocab:model;{rules}"
    with pytest.raises(LayoutError, match=r"'residual_length:seq(\+model)?'"):
        loss_program(FAMILIES["encdec"], "seq:2;model:2", layout, sequence_parallel=True).graph()


@pytest.mark.ci_only
@pytest.mark.slow
def test_keys_and_values_that_go_round_change_nothing():
    family = FAMILIES["encdec"]
    program = loss_program(family, "seq:2", "length:seq", attention_method="ring")
    in_attention = [c for c in program.collective_log() if "attention/attention" in c.operation]
    assert {c.kind for c in in_attention} == {"permute"}
    assert_close(program(family.batch()), on_one_device("encdec"), 1e-5)


# Every value of every choice, combined with hparams that might conflict with it.
CHOICES = {
    "sinusoidal gelu smoothing": {
        "position": "sinusoidal",
        "mlp": "gelu",
        "use_bias": True,
        "label_smoothing": 0.1,
        "z_loss": 1e-2,
    },
    "rotary swiglu grouped post layer norm": {
        "position": "rotary",
        "mlp": "swiglu",
        "num_kv_heads": 2,
        "norm_position": "post",
        "norm_type": "layer",
        "norm_epsilon": 1e-5,
    },
    "relative geglu": {"position": "relative", "mlp": "geglu", "relative_max_distance": 20},
    "none silu untied": {
        **{"position": "none", "mlp": "silu", "tie_embeddings": False, "scale_embeddings": True}
    },
    "local multi-query llama 3.1": {
        "attention_type": "local",
        "attention_window": 3,
        "num_kv_heads": 1,
        "position": "rotary",
        "rotary_scaling_factor": 8.0,
        "rotary_original_length": 10,
    },
    "sinks, wide values, norms of all heads, caps": {
        **{"attention_sinks": True, "d_v": 12, "attention_soft_cap": 2.0, "qk_norm": "projection"},
        **{"norm_position": "both", "logits_soft_cap": 3.0, "residual_multiplier": 0.5},
    },
    "untied, inputs and targets share": {"tie_embeddings": False, "shared_embedding": True},
}
# Choices that are tested with an encoder-decoder.
FOR_PAIRS = ["relative geglu", "untied, inputs and targets share"]


@functools.cache
def plain_loss(name):
    program = loss_program(FAMILIES[name], with_gradients=False)
    return float(program(FAMILIES[name].batch())["loss"])


EACH_CHOICE = [("lm", choice) for choice in CHOICES if choice not in FOR_PAIRS] + [
    ("encdec", choice) for choice in FOR_PAIRS
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "choice"), EACH_CHOICE)
def test_any_choice_is_the_same_split(name, choice):
    family, changes = FAMILIES[name], CHOICES[choice]
    mesh_shape, rules = LAYOUTS["context and tensor"]
    if changes.get("num_kv_heads") == 1:
        rules = rules.replace("kv_heads:model;", "")
    whole = loss_program(family, **changes)(family.batch())
    split = loss_program(family, mesh_shape, rules, **changes)(family.batch())
    assert_close(split, whole, 1e-5)
    assert float(whole["loss"]) != pytest.approx(plain_loss(name), rel=1e-3)


def test_untied_inputs_and_targets_may_share_a_table():
    def tables(**changes):
        program = loss_program(FAMILIES["encdec"], with_gradients=False, **changes)
        return {v.spec.name for v in program.variables if v.spec.name.endswith("embedding")}

    assert tables() == tables(shared_embedding=True) == {"embedding"}
    untied = tables(tie_embeddings=False)
    assert untied == {"encoder/embedding", "decoder/embedding", "decoder/output_embedding"}
    both = tables(tie_embeddings=False, shared_embedding=True)
    assert both == {"embedding", "output_embedding"}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["one device", "experts"])
def test_the_share_of_tokens_that_find_no_place_is_said(layout):
    """Experts have room for one token of a row, so most are dropped, equally many on any mesh."""

    def said(factor):
        changes = {"moe_capacity_factor_train": factor}
        program = loss_program(FAMILIES["moe"], *LAYOUTS[layout], with_gradients=False, **changes)
        values = program(FAMILIES["moe"].batch())
        return float(values["expert_choices"]), float(values["expert_dropped"])

    tokens = np.count_nonzero(FAMILIES["moe"].batch()["targets_segmentation"])
    assert said(8.0) == (tokens, 0.0)
    choices, dropped = said(1 / LENGTH)
    assert choices == tokens
    rows = FAMILIES["moe"].batch()["targets_segmentation"].any(axis=1).sum()
    assert tokens - 4 * rows <= dropped < tokens


def test_the_losses_of_routers_have_the_weights_of_their_hparams():
    def added(balance, z):
        changes = {"moe_load_balance_loss": balance, "moe_router_z_loss": z}
        program = loss_program(FAMILIES["moe"], with_gradients=False, **changes)
        values = program(FAMILIES["moe"].batch())
        return float(values["loss"] - values["nll"] / values["tokens"])

    assert added(0.0, 0.0) == pytest.approx(0.0, abs=1e-6)
    assert min(added(1.0, 0.0), added(0.0, 1.0)) > 0.5
    wanted = 0.2 * added(1.0, 0.0) + 0.3 * added(0.0, 1.0)
    assert added(0.2, 0.3) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("name", ["moe", "moe_encdec"])
def test_experts_do_not_choose_among_what_is_still_to_come(name):
    with pytest.raises(ValueError, match="use top_1"):
        FAMILIES[name].make(moe_gating="expert_choice")
