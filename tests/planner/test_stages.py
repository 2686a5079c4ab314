"""A plan with stages matches the program; its time follows from the schedule's table."""

from collections import Counter

import pytest

import t2tp
from t2tp.mesh.layout import LayoutError
from t2tp.pipeline.schedule import Action
from t2tp.pipeline.schedules import make_schedule
from t2tp.planner import ClusterFile
from t2tp.planner.report import plan_report
from t2tp.planner.stages.timing import Table
from t2tp.report.units import size
from t2tp.step.order import FIRST, LAST, MIDDLE
from t2tp.trainer.planning import request
from tests.models.small_lm import make_hparams
from tests.models.small_transformers import FAMILIES
from tests.planner.engine_cluster import engine_stack

TENSOR = "heads:model;d_ff:model;vocab:model"
CASES = {
    "1f1b": {"mesh_shape": "stage:4", "layout": "layers:stage"},
    "with tensor parallelism, recomputed": {
        "mesh_shape": "stage:2;data:2;model:2",
        "layout": f"layers:stage;batch:data;{TENSOR}",
        "recompute": "layer",
        "pipeline_schedule": "gpipe",
    },
    "in chunks, zero 2": {
        "mesh_shape": "stage:2;data:2",
        "layout": "layers:stage;batch:data",
        "pipeline_schedule": "interleaved",
        "pipeline_chunks": 2,
        "zero_stage": 2,
    },
    "zero bubble, zero 3": {
        "mesh_shape": "stage:2;data:2",
        "layout": "layers:stage;batch:data",
        "pipeline_schedule": "zero_bubble",
        "zero_stage": 3,
    },
}


def wanted(**values):
    return request("transformer_lm", make_hparams(microbatches=4, **values), vocab_size=30)


def collectives(staged, request):
    """Returns the collectives of all stages together, as a program counts them.

    The keys are kind and axes, and the values are number and bytes.
    """
    step = staged.lowering.of(*(n // staged.table.stages for n in staged.lowering.stacks.values()))
    whole = Counter(step.by_place[FIRST].traffic)
    whole.update(step.by_place[LAST].traffic)
    whole.subtract(step.by_place[MIDDLE].traffic)
    counts, sizes = Counter(), Counter()
    for traffic, number in whole.items():
        # The lowered program has 2 microbatches and 1 chunk, and the planned step has 4
        # microbatches.
        times = number * traffic.times * (4 // 2 if traffic.times > 1 else 1)
        if traffic.kind == "permute":
            times *= staged.layout.pipeline.chunks
        counts[traffic.kind, traffic.axes] += times
        sizes[traffic.kind, traffic.axes] += times * traffic.num_bytes
    return {key: (counts[key], sizes[key]) for key in counts if counts[key]}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_collectives_and_variables_are_those_of_the_program(case):
    made = wanted(num_hidden_layers=8, **CASES[case])
    staged = made.staged(engine_stack())
    program = made.program(made.hparams)
    planned, real = collectives(staged, made), program.collectives()
    assert planned.keys() == real.keys()
    for key, (count, num_bytes) in real.items():
        assert planned[key][1] == num_bytes, key
        # Small reduce-scatters share buckets across layers, and only a few layers are lowered.
        assert planned[key][0] == count or key[0] == "reducescatter", key
    said = t2tp.explain(program).data.memory
    for stage in range(staged.table.stages):
        variables = staged.of_stage(stage).variables
        assert variables["weights"] == said["weights"]
        assert variables["optimizer"] == said["optimizer"]
    sent = made.plan(engine_stack()).costs
    permuted = [c for c in sent if c.kind.startswith("permute")]
    # The first and the last stage send in one direction only, unless they have chunks.
    number, _ = program.collectives()["permute", ("stage",)]
    assert sum(c.count for c in permuted) <= number


@pytest.mark.parametrize("width", [16, 256])
def test_each_stage_gathers_the_weights_of_its_layers(width):
    """Small weights are gathered together with the embedding, which the middle stage lacks."""
    case = {**CASES["in chunks, zero 2"], "d_model": width, "d_ff": 4096}
    made = wanted(num_hidden_layers=8, **case)
    cluster = ClusterFile.load("a100", "megatron")
    steps = made.staged(cluster).lowering.of(2).by_place
    sent = Counter()
    for place, step in steps.items():
        for t, n in step.traffic.items():
            sent[place] += n * t.num_bytes if t.kind == "allgather" and t.of_state else 0
    assert sent[FIRST] >= sent[MIDDLE] > 0.9 * sent[LAST] > 0


@pytest.mark.slow
def test_a_model_with_two_stacks_passes_the_stages_twice():
    family = FAMILIES["encdec"]
    hparams = family.hparams(
        num_hidden_layers=2, microbatches=4, mesh_shape="stage:2", layout="layers:stage"
    )
    made = request("transformer", hparams, 30)
    staged = made.staged(engine_stack())
    assert staged.table.chunks == 2
    assert collectives(staged, made) == made.program(hparams).collectives()


TABLES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1)]


@pytest.mark.parametrize(("schedule", "chunks"), TABLES)
def test_a_long_table_follows_from_short_ones(schedule, chunks):
    """The stages take different seconds. Their saved activations are compared, too."""
    seconds = [(1.0, 2.0, 1.5), (1.0, 1.0, 1.5), (2.0, 2.0, 1.0)]
    whole = make_schedule(schedule, 3, 41, chunks)
    table = Table(schedule, 3, 41, chunks)
    assert table.short[0].microbatches < 41
    entries = [
        {
            (action, chunk): x
            for action, x in zip(Action, each, strict=True)
            for chunk in range(chunks)
        }
        for each in seconds
    ]
    timing = table.run(entries, [0.0] * chunks)
    end, busy = whole.simulate(lambda stage, entry: entries[stage][entry.action, entry.chunk])
    assert timing.seconds == pytest.approx(end)
    assert timing.busy == pytest.approx(busy)
    assert timing.idle_share == pytest.approx(1 - sum(busy) / (3 * end))
    assert table.kept([[1.0] * chunks] * 3) == whole.alive()
    both_ways = (Action.FORWARD, Action.BACKWARD)
    assert timing.sends[1] == {(way, chunk): 41 for way in both_ways for chunk in range(chunks)}


def test_a_message_holds_up_its_sender_and_its_receiver():
    entries = {(Action.FORWARD, 0): 1.0, (Action.BACKWARD, 0): 1.0}
    # F0 of stage 0, a message, F0 and B0 of stage 1, a message, and B0 of stage 0 are in sequence.
    assert Table("1f1b", 2, 1).run([entries] * 2, [0.5]).seconds == pytest.approx(5.0)


def test_what_is_counted_on_the_whole_mesh_does_not_depend_on_the_stages():
    cluster = engine_stack()
    shallow, staged = (
        wanted(num_hidden_layers=8, mesh_shape=mesh, layout="layers:stage").plan(cluster)
        for mesh in ("", "stage:4")
    )
    assert staged.parameters == shallow.parameters
    assert staged.model_flops == pytest.approx(shallow.model_flops)
    assert staged.causal_flops == pytest.approx(shallow.causal_flops)
    assert staged.tokens == shallow.tokens


def test_a_stage_keeps_as_many_microbatches_as_the_table_says():
    cluster = engine_stack()
    steps = {
        name: wanted(pipeline_schedule=name, num_hidden_layers=4, **CASES["1f1b"]).staged(cluster)
        for name in ("1f1b", "gpipe")
    }
    (kept,) = steps["1f1b"].lowering.of(1).kept
    (message,) = steps["1f1b"].lowering.of(1).messages
    assert kept > 0
    for name, alive in (("1f1b", [4, 3, 2, 1]), ("gpipe", [4, 4, 4, 4])):
        # The last stage also saves the output of its layers.
        sizes = [kept, kept, kept, kept + message]
        more = [steps[name].kept_of_others(stage) for stage in range(4)]
        assert more == pytest.approx(
            [(count - 1) * size for count, size in zip(alive, sizes, strict=True)]
        )


def test_layers_are_dealt_out_as_the_layout_says():
    made = wanted(num_hidden_layers=8, pipeline_layers="1,3,3,1", **CASES["1f1b"])
    plan = made.plan(engine_stack())
    assert [stage.layers for stage in plan.pipeline.by_stage] == [1, 3, 3, 1]
    assert plan.pipeline.busiest in (1, 2)
    forward = [stage.forward for stage in plan.pipeline.by_stage]
    assert forward[1] == forward[2] > 2 * forward[3]
    assert plan.seconds == pytest.approx(
        sum(cost.seconds for cost in plan.costs) / (1 - plan.bubble)
    )


def test_a_plan_says_what_its_stages_do():
    plan = wanted(num_hidden_layers=4, **CASES["1f1b"]).plan(engine_stack())
    assert "4 stages of 1 layer, 1f1b, 4 microbatches" in str(plan_report(plan))
    assert f"pipeline bubble {plan.bubble:.0%}" in str(plan_report(plan))
    drawn = plan_report(plan).html()
    for stage, each in enumerate(plan.pipeline.by_stage):
        assert f"stage {stage}: 1 layer, {size(each.memory)}" in drawn
    assert len(plan.to_dict()["pipeline"]["by_stage"]) == 4
    assert max(each.memory for each in plan.pipeline.by_stage) == plan.memory_total


@pytest.mark.slow
def test_a_table_of_ones_own_is_planned(tmp_path):
    (tmp_path / "mine.csv").write_text(str(make_schedule("gpipe", 4, 4)))
    mine, known = (
        wanted(num_hidden_layers=4, pipeline_schedule=name, **CASES["1f1b"]).plan(engine_stack())
        for name in (str(tmp_path / "mine.csv"), "gpipe")
    )
    assert mine.seconds == known.seconds and mine.memory == known.memory


REFUSED = [
    ({"num_hidden_layers": 2}, "makes 4 stages"),
    ({"num_hidden_layers": 4, "pipeline_layers": "1,1"}, "pipeline_layers"),
]


@pytest.mark.parametrize(("values", "says"), REFUSED)
def test_stages_that_cannot_be_are_one_sentence(values, says):
    with pytest.raises(LayoutError, match=says):
        wanted(**CASES["1f1b"], **values).plan(engine_stack())
