"""A device holds only its slices of a model."""

import pytest

import t2tp
from tests.models.small_lm import make_batch, training_program


@pytest.mark.parametrize("optimizer", ["adam", "adafactor", "sgd"])
def test_a_device_holds_what_the_shapes_of_weights_and_slots_say(optimizer):
    program = training_program("data:2;model:2", optimizer=optimizer)
    program(make_batch())
    said = t2tp.explain(program).data.memory
    kept = [said["weights"], said["optimizer"]]
    for pnum, device in enumerate(program.cluster.devices):
        slices = [v.slice_of(pnum) for v in program.variables]
        assert {x.device.rpartition("/")[2] for x in slices} == {device.rpartition("/")[2]}
        assert sum(x.numpy().nbytes for x in slices) == sum(kept)
    # `model` splits all weights in two, except positions and norms; `data` splits no weights.
    whole = sum(4 * v.spec.shape.size for v in program.variables if v.spec.trainable)
    assert 0.5 < kept[0] / whole < 0.6
