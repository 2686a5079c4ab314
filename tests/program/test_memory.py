"""A device holds only its slices of a model."""

import pytest

import t2tp
from tests.models.small_lm import make_batch, training_program


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
    # `model` splits all weights in two, except positions and norms; `data` splits no weights.
    assert 0.5 < kept[0].on_device / kept[0].whole < 0.6
