"""The layouts that a search proposes run; if it finds none, its message says so."""

import dataclasses

import pytest

import t2tp
from t2tp import registry
from t2tp.mesh.layout import Layout
from t2tp.planner import ClusterFile
from t2tp.planner.candidates import Candidate, candidates
from t2tp.planner.search import NothingFitsError, Search, days_of, pareto, price_of
from t2tp.trainer.planning import request
from tests.models.small_lm import FEATURES, make_batch, make_hparams

A100 = ClusterFile.load("a100")


def request_of(**changes):
    return request("transformer_lm", make_hparams(mesh_shape="", **changes), vocab_size=30)


def search(devices, layers=2, rows=8, cluster=A100, **arguments):
    return Search(request_of(num_hidden_layers=layers), cluster, devices, rows, **arguments)


def a100(**device):
    """Returns the cluster with a changed device."""
    return dataclasses.replace(A100, device=dataclasses.replace(A100.device, **device))


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_everything_that_may_be_proposed_is_accepted_by_a_program(devices):
    wanted, sizes = request_of(num_hidden_layers=4), {"heads": {4}, "d_ff": {32}, "vocab": {32}}
    made = list(candidates(wanted.hparams, sizes, devices, 8, max_tensor_parallel=8, fixed={}))
    assert len(set(made)) == len(made) > 0
    # One candidate of each layout, ZeRO stage and schedule, because other choices are never
    # refused.
    kinds = {(c.layout, c.zero_stage if c.stages == 1 else c.program().schedule): c for c in made}
    for candidate in kinds.values():
        program = wanted.program(candidate.applied(wanted.hparams))
        assert program.layout.size == devices


@pytest.mark.ci_only
@pytest.mark.slow
@pytest.mark.parametrize(("devices", "schedule"), [(2, ""), (4, "interleaved")])
def test_the_best_trains(devices, schedule):
    fixed = {"pipeline_schedule": schedule} if schedule else {}
    wanted = search(devices, layers=4, top=1, rules=["layers:stage"] * bool(schedule), fixed=fixed)
    best, *_ = wanted.run()
    assert schedule in best.candidate.hparams().get("pipeline_schedule", "")
    hparams = best.candidate.applied(wanted.request.hparams)
    step, layout = wanted.request.step_fn(hparams), Layout.from_hparams(hparams)
    program = t2tp.Program(step, FEATURES, layout=layout)
    assert program(make_batch(), step=0)["loss"] > 0


def test_axes_are_ordered_so_that_what_communicates_most_is_nearest():
    near, far = A100.links
    # Hosts have two devices, and tensor parallelism communicates less than the weights' reduction.
    cluster = dataclasses.replace(A100, links=(dataclasses.replace(near, devices=2), far))
    fixed = {"microbatches": 1, "zero_stage": 0, "sequence_parallel": False, "recompute": "none"}
    made = search(4, cluster=cluster, top=1, rules=["heads:model", "batch:data"], fixed=fixed)
    (best,) = made.run()
    orders = {}
    for candidate in best.candidate.permuted():
        hparams = candidate.applied(made.request.hparams)
        plan = dataclasses.replace(made.request, hparams=hparams).plan(cluster)
        orders[plan.seconds] = candidate
    assert len(orders) == 2 and orders[min(orders)] == best.candidate


@pytest.mark.ci_only
def test_found_layouts_are_sorted_and_the_front_has_no_worse_one():
    found = search(4, top=4).run()
    seconds = [each.plan.seconds for each in found]
    assert seconds == sorted(seconds)
    front = pareto(found)
    assert front[0] is found[0]
    memory = [each.plan.memory_total for each in front]
    assert memory == sorted(memory, reverse=True)
    assert all(isinstance(Layout(e.plan.mesh_shape, e.plan.layout), t2tp.Layout) for e in found)


# The model's matrices have 4096 rows: 64 processors divide them, and 48 do not.
ESTIMATED = {
    "sharded": (Candidate(64, 1, 2, "none", 2, False), ""),
    "what nothing divides": (Candidate(48, 1, 2, "none", 2, False), "optimizer=adafactor"),
    "whole": (Candidate(16, 1, 1, "layer", 0, False), "optimizer=sgd,activation_dtype=float32"),
    "dealt out": (Candidate(16, 1, 1, "layer", 0, False), "optimizer=muon"),
    "tensor parallel": (Candidate(16, 4, 1, "none", 3, True), "activation_dtype=float32"),
    "stages of 10 or 11 layers": (Candidate(16, 2, 4, "none", 1, True, stages=3), ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ESTIMATED)
def test_the_estimate_that_chooses_what_to_lower_is_near_the_plan(case):
    (candidate, values), rows = ESTIMATED[case], 384
    hparams = registry.hparams("llama_7b")
    hparams.parse(values)
    hparams.parse(f"batch_size={rows},batch_size_unit=sequences_per_batch,max_length=2048")
    wanted = request("transformer_lm", hparams, vocab_size=32000)
    cluster = ClusterFile.load("h100")
    estimate = Search(wanted, cluster, candidate.data * candidate.model, rows).estimate
    plan = dataclasses.replace(wanted, hparams=candidate.applied(hparams)).plan(cluster)
    assert estimate.memory(candidate, rows) == pytest.approx(plan.memory_total, rel=0.1)
    assert estimate.seconds(candidate, rows) == pytest.approx(plan.seconds, rel=0.15)


def test_what_is_fixed_is_not_chosen():
    found = search(4, top=2, fixed={"zero_stage": 3}, rules=["heads:model"]).run()
    for each in found:
        assert each.candidate.zero_stage == 3 and each.candidate.model > 1


def test_devices_are_doubled_until_a_training_is_done_in_time():
    tokens = 1e9
    # The devices are so slow that communication takes no time in comparison.
    one = search(1, cluster=a100(peak={"float32": 1e9}, bandwidth=1e9), top=1)
    slow = one.fewest_devices(tokens, days=1e6)
    assert slow[0].plan.devices == 1
    days = days_of(slow[0].plan, tokens)
    faster = dataclasses.replace(one, top=2).fewest_devices(tokens, days=0.95 * days)
    assert faster[0].plan.devices > 1 and days_of(faster[0].plan, tokens) <= 0.95 * days
    with pytest.raises(NothingFitsError, match="takes more than 1e-09 days on any number"):
        search(1, top=1).fewest_devices(tokens, days=1e-9)


def test_a_price_is_that_of_the_device_hours():
    plan = dataclasses.replace(search(2, top=1).run()[0].plan, price_per_hour=3.0)
    assert price_of(plan, 1e9) == pytest.approx(days_of(plan, 1e9) * 24 * 2 * 3.0)


def test_a_model_that_fits_nowhere_is_one_sentence():
    fixed = {"microbatches": 1, "recompute": "none"}
    wanted = search(2, cluster=a100(memory=1.51e9), fixed=fixed, rules=["batch:data"])
    with pytest.raises(NothingFitsError, match="^transformer_lm .* 8 rows"):
        wanted.run()


@pytest.mark.parametrize("rule", ["headz:model", "heads:modell", "experts:expert", "length:seq"])
def test_a_rule_that_no_candidate_has_is_refused_with_the_nearest(rule):
    with pytest.raises(ValueError, match=f"{rule}.*:"):
        search(2, rules=[rule]).run()


@pytest.mark.parametrize(("devices", "is_split"), [(2, True), (4, False)])
def test_key_value_heads_are_split_where_the_axis_divides_them(devices, is_split):
    wanted = request_of(num_kv_heads=2, num_hidden_layers=1)
    best, *_ = Search(wanted, A100, devices, rows=1, rules=["heads:model"], top=1).run()
    assert best.candidate.model == devices
    assert ("kv_heads:model" in best.candidate.layout) == is_split


def test_a_proposal_leaves_the_headroom_free():
    found = search(1, top=4).run()
    needed = sorted(each.plan.memory_total for each in found)
    headroom = 1 - (needed[0] + needed[-1]) / 2 / (2 * needed[-1])
    tight = dataclasses.replace(a100(memory=2 * needed[-1]), headroom=headroom)
    for each in search(1, cluster=tight, top=4).run():
        assert each.plan.fits == "yes" and each.plan.memory_total < needed[-1]
    largest = max(found, key=lambda each: each.plan.memory_total)
    plan = dataclasses.replace(search(1).request, hparams=largest.hparams).plan(tight)
    assert plan.fits == "borderline"


def test_a_batch_that_no_mesh_divides_is_said():
    with pytest.raises(NothingFitsError, match="no mesh of 11 devices .* 6 rows"):
        search(11, rows=6).run()
