"""What a search proposes runs; what cannot be found is said."""

from __future__ import annotations

import pytest

import t2tp
from t2tp.mesh.layout import Layout
from t2tp.planner import ClusterFile
from t2tp.planner.candidates import candidates
from t2tp.planner.search import NothingFitsError, Search, pareto
from t2tp.trainer.planning import request
from tests.models.small_lm import FEATURES, make_batch, make_hparams, training_program

assert FEATURES


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


def test_a_model_that_fits_nowhere_is_one_sentence():
    with pytest.raises(NothingFitsError, match=r"^transformer_lm (does not fit|fits on no)"):
        search(2, rules=["heads:nowhere"]).run()


def test_a_batch_that_no_mesh_divides_is_said():
    wanted = request("transformer_lm", make_hparams(mesh_shape=""), vocab_size=30)
    with pytest.raises(NothingFitsError, match="no mesh of 16 devices divides a batch of 6 rows"):
        Search(wanted, ClusterFile.load("a100"), 16, rows=6).run()
