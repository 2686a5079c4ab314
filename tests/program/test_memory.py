"""A process holds its part of a model, and nobody ever the whole."""

import json

import pytest

import t2tp
from tests.models.small_lm import make_batch, training_program
from tests.program.slices_of_a_model import LAYER_BYTES
from tests.warm_processes import printed, tf_configs

PROCESSES, FEW, MANY = 4, 1, 8
PER_WEIGHT = 3  # Adam keeps two numbers besides the weight.


@pytest.mark.parametrize("optimizer", ["adam", "adafactor", "sgd"])
def test_a_device_holds_what_the_shapes_of_weights_and_slots_say(optimizer):
    program = training_program("data:2;model:2", optimizer=optimizer)
    program(make_batch())
    said = {line.what: line for line in t2tp.explain(program).data.memory()}
    kept = [said["variables"], said["optimizer slots"]]
    for pnum, device in enumerate(program.cluster.devices):
        slices = [v.slice_of(pnum) for v in program.variables]
        assert {x.device.rpartition("/")[2] for x in slices} == {device.rpartition("/")[2]}
        assert sum(x.numpy().nbytes for x in slices) == sum(line.on_device for line in kept)
    # All but positions and norms is split in two; the data axis splits no weights.
    assert 0.5 < kept[0].on_device / kept[0].whole < 0.6


@pytest.mark.slow
@pytest.mark.ci_only  # tests/optim/test_zero_memory.py measures the memory of smaller steps.
def test_four_processes_share_a_model_of_half_a_gigabyte(tmp_path):
    """Initialised, trained, saved and restored, 7 more layers cost each process a quarter of their
    weights and slots: 352 MB of 1.4 GB."""
    target, layers = "tests.program.slices_of_a_model:main", [str(FEW), str(MANY)]
    arguments = [[str(tmp_path / "run"), *layers]] * PROCESSES
    found = printed(target, arguments, tf_configs(PROCESSES), tmp_path / "printed", seconds=600)
    grown = 0
    for few, many in map(json.loads, found):
        grown = max(grown, many["peak"] - few["peak"])
        for first, second, again in (few["losses"], many["losses"]):
            assert second < first
            assert again == second  # after the checkpoint of before was restored
    assert len(set(tuple(json.loads(each)[1]["losses"]) for each in found)) == 1
    share = (MANY - FEW) * LAYER_BYTES * PER_WEIGHT / PROCESSES
    assert MANY * LAYER_BYTES >= 1 << 29
    assert 0.5 * share < grown < 1.1 * share
