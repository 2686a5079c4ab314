"""What a search proposes runs; what cannot be found is said."""

from __future__ import annotations

import dataclasses

import pytest

import t2tp
from t2tp.mesh.layout import Layout
from t2tp.planner import ClusterFile
from t2tp.planner.candidates import candidates
from t2tp.planner.search import NothingFitsError, Search, days_of, pareto, price_of
from t2tp.trainer.planning import request
from tests.models.small_lm import make_batch, make_hparams, training_program


def search(devices, **arguments):
    wanted = request("transformer_lm", make_hparams(mesh_shape=""), vocab_size=30)
    return Search(wanted, ClusterFile.load("a100"), devices, rows=8, **arguments)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_everything_that_may_be_proposed_is_accepted_by_a_program(devices):
    made = list(candidates(make_hparams(), devices, 8, max_tensor_parallel=8, fixed={}))
    assert len(set(made)) == len(made) > 0
    # One of each mesh and stage: microbatches and recomputation do not change the layout.
    of_layout = {(c.layout, c.mesh_shape, c.zero_stage): c for c in made}
    wanted = request("transformer_lm", make_hparams(mesh_shape=""), vocab_size=30)
    for candidate in of_layout.values():
        program = wanted.program(candidate.applied(wanted.hparams))
        assert program.layout.size == devices


def test_the_best_of_two_devices_trains():
    best, *_ = search(2, lowered=1).run()
    values = best.candidate.hparams()
    mesh = values.pop("mesh_shape")
    loss = [training_program(mesh, **values)(make_batch(), step=0)["loss"] for _ in range(1)]
    assert loss[0] > 0


def test_found_layouts_are_sorted_and_the_front_has_no_worse_one():
    found = search(4, lowered=4).run()
    seconds = [each.plan.seconds for each in found]
    assert seconds == sorted(seconds)
    front = pareto(found)
    assert front[0] is found[0]
    memory = [each.plan.memory_total for each in front]
    assert memory == sorted(memory, reverse=True)
    assert all(isinstance(Layout(e.plan.mesh_shape, e.plan.layout), t2tp.Layout) for e in found)


def test_what_is_fixed_is_not_chosen():
    found = search(4, lowered=2, fixed={"zero_stage": 3}, rules=["heads:model"]).run()
    for each in found:
        assert each.candidate.zero_stage == 3 and each.candidate.model > 1


def test_devices_are_doubled_until_a_training_is_done_in_time():
    tokens = 1e9
    fast = ClusterFile.load("a100")
    # So slow that communication takes no time beside computation.
    device = dataclasses.replace(fast.device, peak={"float32": 1e9}, bandwidth=1e9)
    cluster = dataclasses.replace(fast, device=device)
    one = dataclasses.replace(search(1, lowered=1), cluster=cluster)
    slow = one.until(tokens, days=1e6)
    assert slow[0].plan.devices == 1
    days = days_of(slow[0].plan, tokens)
    faster = dataclasses.replace(one, lowered=2).until(tokens, days=0.95 * days)
    assert faster[0].plan.devices > 1 and days_of(faster[0].plan, tokens) <= 0.95 * days
    with pytest.raises(NothingFitsError, match="takes more than 1e-09 days on any number"):
        search(1, lowered=1).until(tokens, days=1e-9)


def test_a_price_is_that_of_the_device_hours():
    plan = dataclasses.replace(search(2, lowered=1).run()[0].plan, price_per_hour=3.0)
    assert price_of(plan, 1e9) == pytest.approx(days_of(plan, 1e9) * 24 * 2 * 3.0)


def test_a_model_that_fits_nowhere_is_one_sentence():
    with pytest.raises(NothingFitsError, match=r"^transformer_lm (does not fit|fits on no)"):
        search(2, rules=["heads:nowhere"]).run()


def test_a_batch_that_no_mesh_divides_is_said():
    wanted = request("transformer_lm", make_hparams(mesh_shape=""), vocab_size=30)
    with pytest.raises(NothingFitsError, match="no mesh of 16 devices divides a batch of 6 rows"):
        Search(wanted, ClusterFile.load("a100"), 16, rows=6).run()
