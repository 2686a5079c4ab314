"""Adapters (LoRA) train the same in any layout, and all other weights stay frozen.

Programs are in float64, so that rounding hides no error.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp.building.adapters import DOWN, UP
from t2tp.building.mesh import declared
from t2tp.choices import ADAPTED
from t2tp.layout_report import explain
from t2tp.program.abstract_program import AbstractProgram
from t2tp.step.lowered import LoweredStep
from tests.layout_check import double_program
from tests.models.small_transformers import FAMILIES
from tests.optim import sharded_programs

RANK = 3
LORA = {"lora_rank": RANK, "lora_alpha": 6.0, "lora_targets": list(ADAPTED)}
STEPS = 3  # With Adam, B changes in the first step, and A from the second step on.


def make(family, mesh="one device", stage=0, **changes):
    """Returns a program that trains adapters."""
    changes = {"learning_rate_constant": 0.02, **LORA, **changes}
    return sharded_programs.make(family, mesh, stage, "adam", **changes)


def is_adapter(name):
    return name.endswith((DOWN, UP))


@functools.cache
def trained(family, mesh="one device", stage=0, **changes):
    """Returns losses and gradient norms, and the variables before and after the steps."""
    program = make(family, mesh, stage, **changes)
    before = double_program.values_of(program)
    shown = [program(FAMILIES[family].batch(), number) for number in range(STEPS)]
    losses = [[float(x["loss"]), float(x["gradient_norm"])] for x in shown]
    return losses, before, double_program.values_of(program)


CASES = [
    ("lm", "features", 0, {"use_bias": True}),
    ("lm", "both", 2, {"microbatches": 2}),
    ("lm", "three axes", 0, {"num_kv_heads": 2, "mlp": "swiglu", "position": "rotary"}),
    ("lm", "both", 3, {"lora_dropout": 0.3, "microbatches": 2, "recompute": "layer"}),
    ("encdec", "both", 3, {}),
    ("moe", "experts", 3, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "mesh", "stage", "changes"), CASES)
def test_any_layout_trains_the_same_adapters(family, mesh, stage, changes):
    what = {k: v for k, v in changes.items() if k not in ("microbatches", "recompute")}
    losses, _, given = trained(family, mesh, stage, **changes)
    wanted_losses, before, wanted = trained(family, **what)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-12)
    assert wanted_losses[2][0] < wanted_losses[0][0]
    for name, value in wanted.items():
        np.testing.assert_allclose(given[name], value, rtol=0, atol=1e-9, err_msg=name)
        if is_adapter(name):
            assert np.abs(value - before[name]).max() > 1e-3
        elif not is_adapter(name.rpartition("/")[0]):  # also not a slot of an adapter
            np.testing.assert_array_equal(value, before[name], err_msg=name)


@pytest.mark.slow
def test_dropout_is_of_the_inputs_of_adapters_in_training_alone():
    first, second = (make("lm", lora_dropout=rate)(FAMILIES["lm"].batch()) for rate in (0.0, 0.4))
    assert float(first["loss"]) == float(second["loss"])  # B is 0; only A's input has dropout
    assert abs(float(first["gradient_norm"]) / float(second["gradient_norm"]) - 1) > 0.01
    model = FAMILIES["lm"].make(**LORA, lora_dropout=0.4)
    built = {}

    def step(mesh, features):
        built["dropout"] = [
            [each.name for each in mesh.graph.operations if "Dropout" in type(each).__name__]
            for training in (False, True)
            if model.loss(mesh, features, training) is not None
        ]
        return {}

    AbstractProgram(step, FAMILIES["lm"].features()).graph()
    assert not built["dropout"][0] and built["dropout"][1]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["encdec", "moe"])
def test_an_adapter_is_a_change_of_its_weight_by_the_product_of_its_matrices(family):
    program, merged = make(family), make(family, lora_rank=0)
    values = {v.spec.name: v for v in program.variables}
    random = np.random.default_rng(0)
    for name, variable in values.items():
        if name.endswith(UP):
            shape = variable.spec.shape.to_integer_list
            program.set_value(variable, 0, random.normal(size=shape, scale=0.1))
    adapted = 0
    for variable in merged.variables:
        name = variable.spec.name
        if f"{name}{DOWN}" not in values:
            continue
        down, up = (double_program.whole(program, values[f"{name}{end}"]) for end in (DOWN, UP))
        if variable.spec.shape.dims[0].name == "experts":
            change = np.einsum("eir,ero->eio", down, up)
        else:
            change = np.tensordot(down, up, 1)
        value = double_program.whole(merged, variable)
        merged.set_value(variable, 0, value + LORA["lora_alpha"] / RANK * change)
        adapted += 1
    assert adapted >= 5
    batch = FAMILIES[family].batch()
    first, second = (float(each(batch)["loss"]) for each in (program, merged))
    assert first == pytest.approx(second, rel=1e-12)
    assert first != pytest.approx(trained(family)[0][0][0], rel=1e-4)


def trained_names(**changes):
    graph, _ = make("lm", kind=abstract, **changes).graph()
    return [v.name for v in graph.trainable_variables]


def abstract(step, features, layout, xla):
    return AbstractProgram(step, features, layout=layout)


TARGETS = [
    (["query"], "attention", {"q"}),
    (["key", "output"], "attention", {"k", "output"}),
    (["value"], "attention", {"v"}),
    (["feed_forward"], "feed_forward", {"input", "gate", "output"}),
]


@pytest.mark.parametrize(("targets", "block", "wanted"), TARGETS)
def test_targets_alone_have_adapters_and_these_alone_are_trained(targets, block, wanted):
    names = trained_names(lora_targets=targets, mlp="swiglu")
    assert {name.rpartition("/")[0] for name in names} == {f"layer_00/{block}"}
    ends = {name.rpartition("/")[2] for name in names}
    assert ends == {f"{each}{end}" for each in wanted for end in (DOWN, UP)}


def test_what_is_named_is_trained_beside_the_adapters():
    names = trained_names(lora_also_trained="norm*scale$|^embedding|embeddin$")
    others = {name for name in names if not is_adapter(name)}
    assert others == {
        "embedding",
        "final/norm_scale",
        "layer_00/attention/norm_scale",
        "layer_00/feed_forward/norm_scale",
    }


def test_the_optimizer_keeps_and_gradients_take_what_the_adapters_take():
    program, base = (make("lm", "both", kind=abstract, lora_rank=rank) for rank in (RANK, 0))
    steps = [LoweredStep.from_program(each) for each in (program, base)]
    with_adapters, whole = steps
    adapters = with_adapters.variables["weights"] - whole.variables["weights"]
    assert with_adapters.variables["optimizer"] == 2 * adapters
    assert whole.variables["optimizer"] == 2 * whole.variables["weights"]
    report = explain(program).data
    assert report.memory["optimizer"] == 2 * adapters
    assert with_adapters.parameters == sum(v.size for v in program.graph()[0].trainable_variables)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_frozen_weights_are_gathered_in_stage_3_alone(stage):
    """Only stage 3 shards them at rest; otherwise each device has them whole."""
    program = make("lm", "data", stage, kind=abstract)
    collectives = program.collectives()
    gathered = sum(size for (kind, _), (_, size) in collectives.items() if kind == "allgather")
    trainable = program.graph()[0].trainable_variables
    assert all(is_adapter(v.name) for v in trainable)
    adapters = sum(v.size for v in trainable) * 4
    assert gathered > 0
    assert (4 * gathered > 2 * adapters) == (stage == 3)
    frozen = [v for v in program.graph()[0].all_variables if declared(v).is_frozen]
    assert any("@" in str(v.shape.dimension_names) for v in frozen) == (stage == 3)


def test_frozen_weights_are_kept_in_the_dtype_that_they_are_read_in():
    changes = {"activation_dtype": "bfloat16", "kind": t2tp.Program}
    first, second = make("lm", **changes), make("lm", lora_rank=0, **changes)
    dtypes = {v.spec.name: v.spec.dtype for v in first.variables}
    assert dtypes["embedding"] == dtypes["layer_00/attention/q"] == tf.bfloat16
    assert dtypes["final/norm_scale"] == dtypes[f"layer_00/attention/q{DOWN}"] == tf.float32
    batch = FAMILIES["lm"].batch()
    assert float(first(batch)["loss"]) == float(second(batch)["loss"])


REFUSED = [
    ({"lora_targets": []}, "lora_targets"),
    ({"lora_also_trained": "head"}, "matches no variable .* such as embedding"),
    ({"weight_decay": 0.1, "weight_decay_exclude": "embeding"}, "weight_decay_exclude='embeding'"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_adapters_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        trained_names(**changes)


def test_weights_without_decay_may_be_frozen():
    trained_names(weight_decay=0.1, weight_decay_exclude="embedding")
