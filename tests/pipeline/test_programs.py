"""Programs with stages: traffic, size, decoding, and error messages."""

import numpy as np
import pytest

import t2tp
from t2tp import mtf
from t2tp.decoding import DecodeOptions, Decoder, Request
from t2tp.lowering.lowering import all_operations
from t2tp.mesh.layout import Layout, LayoutError
from t2tp.mesh.stages import Pipeline
from t2tp.mesh.storage import Storage
from t2tp.optim import sum_metrics
from t2tp.optim.loss import LossOutput
from t2tp.pipeline.assign_layers import assign_layers
from t2tp.program.program import Program
from t2tp.program.replicas import ReplicaCheck
from tests.models.small_transformers import FAMILIES, MEGATRON
from tests.optim.sharded_programs import training_step
from tests.pipeline import staged_steps

LAYERS = {"num_hidden_layers": 2}


def training(layout: Layout, microbatches: int = 4, **changes: object) -> Program:
    return staged_steps.program("lm", layout, microbatches, kind=Program, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["data", "model"])
def test_a_stage_sends_its_part_of_one_tensor_each_way_for_each_microbatch(axis):
    """With tensor parallelism, each processor has the whole tensor but sends only its part."""
    layout = Layout(f"stage:2;{axis}:2", f"layers:stage;{MEGATRON}")
    program = training(layout, microbatches=2, embedding_shortcut=False)
    count, num_bytes = program.collectives()["permute", ("stage",)]
    batch = FAMILIES["lm"].batch()["targets"]
    activations = batch.size * staged_steps.SIZES["d_model"] * 4
    assert count == 2 * 2
    assert num_bytes == 2 * activations / 2
    if axis == "model":
        assert program.collectives()["allgather", ("model",)] == (count, num_bytes)


def test_a_stage_of_a_deep_model_is_traced_as_fast_as_its_layers_alone():
    def operations(layers: int, mesh: str) -> int:
        program = training(Layout(mesh, "layers:stage"), num_hidden_layers=layers)
        return len(list(all_operations(program.graph()[0].operations)))

    assert operations(16, "stage:8") <= 1.3 * operations(2, "stage:1")


@pytest.mark.slow
def test_copies_within_a_stage_stay_equal():
    layout = Layout("stage:2;data:2", f"layers:stage;{MEGATRON}")
    program = training(layout, microbatches=2, num_hidden_layers=2)
    program(FAMILIES["lm"].batch())
    check = ReplicaCheck(program.variables)
    assert check.mismatches() == []
    broken = program.variables["layer_01/feed_forward/output"]
    broken.slice_of(3).assign_add(np.ones(broken.spec.shape.to_integer_list, np.float32))
    (found,) = check.mismatches()
    assert found.name == broken.spec.name
    assert found.groups == ((2,), (3,))


def test_a_variable_is_on_the_processors_of_its_stage_only():
    program = training(Layout("stage:2;data:2", f"layers:stage;{MEGATRON}"), microbatches=2)
    where = {v.spec.name: list(v.pnums) for v in program.variables}
    assert where["layer_00/attention/q"] == [0, 1]
    assert where["layer_02/attention/q"] == [2, 3]
    assert where["embedding"] == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "options"), [("lm", ""), ("encdec", "beam_size=3")])
def test_decoding_goes_through_the_stages(family, options):
    inputs = [[4, 5, 1], [1], [9, 8, 7, 6, 1], [2] * 7] if family == "encdec" else [None] * 4
    prefixes = [[5, 6, 7], [], [2] * 9, [29]]
    # Enough rows to pass the stages in two groups.
    asked = 16 * [Request(prefix, row) for prefix, row in zip(prefixes, inputs, strict=True)]
    model = FAMILIES[family].make(**LAYERS)
    chosen = DecodeOptions.parse(f"{options},batch_size=64".strip(","))
    wanted, found = (
        [
            hypotheses[0].tokens
            for hypotheses in Decoder.from_model(
                model, chosen, mesh_shape=mesh, layout=f"layers:stage;{MEGATRON}", xla=False
            )(asked)
        ]
        for mesh in ("", "stage:2;data:2")
    )
    assert found == wanted
    assert len({tuple(tokens) for tokens in wanted}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("family", ["moe_encdec", "lm"])
def test_an_evaluation_is_that_of_one_device(family):
    model, batch = FAMILIES[family].make(**LAYERS), FAMILIES[family].batch()

    def evaluated(mesh_shape: str) -> dict[str, float]:
        def step(mesh, features):
            def loss(part):
                return model.loss(mesh, part, training=False)

            if mesh.layout.num_stages > 1:
                return sum_metrics(loss, features, 4, mesh)
            return loss(features).sums

        program = t2tp.Program(
            step,
            FAMILIES[family].features(),
            layout=t2tp.Layout(mesh_shape, "layers:stage"),
            xla=False,
        )
        return {k: float(x) for k, x in program(batch).items() if "summaries" not in k}

    assert evaluated("stage:2") == pytest.approx(evaluated(""), rel=1e-5)


REFUSED = {
    "only 4 layers: use at most 4 stages": {"mesh": "stage:5"},
    "are 5 layers in 2 stages": {"pipeline": Pipeline(layers="2,3")},
    "must be numbers of layers": {"pipeline": Pipeline(layers="2,two")},
    "'stage'.*cannot also split 'd_ff'": {"rules": "layers:stage;d_ff:stage"},
    "zero_axes: the processors of mesh axis 'stage'": {
        "mesh": "stage:2;data:2",
        "storage": Storage(1, "data+stage"),
    },
    "storage_layout: the processors of": {"storage": Storage(1, rules="d_model:stage")},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_is_refused_before_any_work(message):
    case = {"mesh": "stage:2", "rules": "layers:stage", "storage": None, "pipeline": None}
    case |= REFUSED[message]
    with pytest.raises(LayoutError, match=message):
        training(Layout(*case.values()))


def test_stages_have_the_same_kinds_of_layers():
    with pytest.raises(LayoutError, match="layers 0, 3, which have one place"):
        staged_steps.program(
            "moe", Layout("stage:2", "layers:stage"), 2, num_hidden_layers=6, moe_every=2
        )


def test_a_model_without_a_stack_is_refused():
    def step(mesh, features):
        def loss(part):
            w = mtf.get_variable(mesh, "w", mtf.Shape([]))
            return LossOutput({}, {"x": mtf.reduce_sum(part["x"] * w)})

        return sum_metrics(loss, features, 2, mesh)

    with pytest.raises(LayoutError, match="no stack of layers to split"):
        t2tp.Program(
            step, {"x": t2tp.Feature("batch:4")}, mesh_shape="stage:2", layout="layers:stage"
        )


def test_layers_that_are_left_over_go_to_the_middle():
    def sizes(count: int, mesh: str, **options: object) -> list[int]:
        layout = Layout(mesh, "layers:stage", None, Pipeline(**options))
        return [len(r) for ranges in assign_layers(count, layout) for r in ranges]

    assert sizes(8, "stage:4") == [2, 2, 2, 2]
    assert sizes(10, "stage:4") == [2, 3, 3, 2]
    assert sizes(11, "stage:4") == [3, 3, 3, 2]
    assert sizes(30, "stage:4", layers="7,8,8,7") == [7, 8, 8, 7]
    assert sizes(9, "stage:2", chunks=2) == [2, 3, 2, 2]


@pytest.mark.slow
def test_a_layout_with_stages_is_checked_against_one_device():
    layout, family = Layout("stage:2", "layers:stage"), FAMILIES["lm"]
    step = training_step(family.make(**LAYERS, microbatches=2))
    report = t2tp.check_layout(step, family.features(), family.batch(), layout=layout)
    assert "layer_01/attention/q" in str(report)
    assert "agree to 1e-12" in str(report)
