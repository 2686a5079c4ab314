"""Plans reproduce published measurements: those that constants were fitted to, and others."""

import pytest

from t2tp.planner import ClusterFile
from tests.planner import published_steps

pytestmark = pytest.mark.slow


def seconds(plan, phase):
    """Returns a pass's seconds, without the weights' cast, which a step makes only once."""
    return sum(c.seconds for c in plan.costs if c.phase == phase and c.kind != "copy")


@pytest.mark.parametrize("case", published_steps.LAYER)
def test_a_layer_of_the_22b_model_takes_what_table_4_says(case):
    cluster = ClusterFile.load("a100", "megatron")
    two, one = (step.plan(cluster) for step in published_steps.layer_requests(case))
    layer = [1e3 * (seconds(two, p) - seconds(one, p)) for p in ("forward", "backward")]
    assert layer == pytest.approx(published_steps.LAYER[case][-2:], rel=0.02)


def test_mpt_7b_on_eight_h100_takes_what_llm_foundry_measured():
    plan, measured = published_steps.foundry_plan(("7b", 2048, 8, 6, 1, "none", 10_643))
    assert plan.seconds == pytest.approx(measured, rel=0.02)
    assert 55 < published_steps.allocated(plan) < 70  # The device has 80 GiB.


def test_a_plan_warns_of_retries_of_the_allocator():
    """30B at length 8,192 does not fit on 8 devices without retries, and fits on 16."""
    plan, _ = published_steps.foundry_plan(published_steps.FOUNDRY[2])
    assert "allocator may wait and retry" in plan.warnings[0]
    roomy, _ = published_steps.foundry_plan(("30b", 2048, 16, 10, 3, "layer", 2263))
    assert not roomy.warnings


def test_twelve_layers_of_llama_70b_on_eight_b200_take_what_megatron_measured():
    plan, seconds, gib = published_steps.llama_plan("70B", 4, 1, 8, 765.6, 39.07)
    assert plan.seconds == pytest.approx(seconds, rel=0.02)
    assert published_steps.allocated(plan) == pytest.approx(gib, rel=0.02)


@pytest.mark.parametrize("row", [published_steps.LLAMA[0], published_steps.LLAMA[-1]])
def test_megatron_holds_what_was_published_for_stages_and_for_tensor_parallelism(row):
    """A stage does not store other stages' weights."""
    plan, _, gib = published_steps.llama_plan(*row)
    assert published_steps.allocated(plan) == pytest.approx(gib, rel=0.02)


# Long and short sequences, large and small models, with and without recomputation.
UNFITTED = {
    **{
        f"{row[0]}, {row[1]}": lambda row=row: published_steps.foundry_plan(row)
        for row in published_steps.FOUNDRY[1::3]
    },
    "530B": lambda: published_steps.megatron_plan("530B", is_selective=False),
    "1T": lambda: published_steps.megatron_plan("1T", is_selective=True),
    "70B, 2 stages": lambda: published_steps.llama_plan(*published_steps.LLAMA[0])[:2],
}


@pytest.mark.parametrize("name", UNFITTED)
def test_a_step_to_which_nothing_is_fitted_is_inside_the_interval(name):
    plan, seconds = UNFITTED[name]()
    assert plan.seconds == pytest.approx(seconds, rel=0.1)
    assert plan.interval[0] <= seconds <= plan.interval[1]
