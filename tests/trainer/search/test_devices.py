"""Parallel trials share the devices of a host."""

import pytest

from t2tp.trainer.search.trial_run import Devices


def test_each_trial_has_gpus_of_its_own():
    shares = Devices.of_each(2, None, ["0", "1", "2", "3"], range(8))
    assert [each.environment({})["CUDA_VISIBLE_DEVICES"] for each in shares] == ["0,1", "2,3"]
    shares = Devices.of_each(3, 1, ["0", "1", "2", "3"], range(8))
    assert [each.environment({})["CUDA_VISIBLE_DEVICES"] for each in shares] == ["0", "1", "2"]


def test_one_trial_has_the_whole_host_and_more_than_there_are_cores_share_all():
    assert Devices.of_each(1, None, ["0", "1"], range(4)) == [Devices()]
    assert Devices.of_each(4, None, [], range(2)) == [Devices()] * 4


REFUSED = [
    (4, None, ["0", "1"], "4 trials with 1 GPUs each need 4, and there are 2"),
    (2, 2, ["0", "1", "2"], "2 trials with 2 GPUs each need 4, and there are 3"),
    (2, 3, [], "2 trials with 3 cores each need 6, and there are 4"),
]


@pytest.mark.parametrize(("trials", "each", "gpus", "says"), REFUSED)
def test_too_few_devices_are_refused(trials, each, gpus, says):
    with pytest.raises(ValueError, match=says):
        Devices.of_each(trials, each, gpus, range(4))
