"""The order of rows, and the batches of a stream."""

import numpy as np
import pytest

from t2tp.problems.data.permutation import permute

LENGTH = 1024


def stream(problem, data_dir, batch_size, split="train", **options):
    return problem.stream(data_dir, split, batch_size=batch_size, length=LENGTH, **options)


def test_a_batch_has_named_features_of_global_shape(problem, data_dir):
    batch = stream(problem, data_dir, 3)[0]
    kinds = ("", "_segmentation", "_position", "_previous")
    assert list(batch) == [f"targets{kind}" for kind in kinds]
    assert list(batch) == list(problem.features)
    for name, (dimensions, dtype) in problem.features.items():
        assert dimensions in (("batch", "length"), ("batch",))
        assert batch[name].shape == (3, LENGTH)[: len(dimensions)]
        assert batch[name].dtype == batch[name][:].dtype == dtype == np.int32


def test_an_evaluation_is_one_pass_in_order_with_the_last_batch_filled_up(problem, data_dir):
    n = stream(problem, data_dir, 1, "validation").examples_per_epoch
    validation = stream(problem, data_dir, n - 3, "validation")
    assert len(validation) == 2
    assert validation[0].examples.tolist() == list(range(n - 3))
    last = validation[1]
    assert last.examples.tolist() == [n - 3, n - 2, n - 1] + [-1] * (n - 6)
    for feature in last.values():
        assert not feature[3 : n - 3].any()
    assert last["targets_segmentation"][0:3, 0:1].tolist() == [[1], [1], [1]]


def test_what_is_not_there_is_refused(problem, data_dir):
    train, validation = stream(problem, data_dir, 8), stream(problem, data_dir, 8, "validation")
    with pytest.raises(IndexError, match="counted from 0"):
        train[-1]
    with pytest.raises(IndexError, match=f"one pass has {len(validation)}"):
        validation[len(validation)]
    with pytest.raises(TypeError):
        train[0:2]
    for index in (0, (slice(None), 3), (slice(None),) * 3):
        with pytest.raises(TypeError, match=r"feature\[0:2, 0:64\]"):
            train[0]["targets"][index]
    with pytest.raises(KeyError, match="the features are targets, targets_segmentation"):
        train[0]["inputs"]
    with pytest.raises(ValueError, match="did you mean validation"):
        stream(problem, data_dir, 8, "valid")
    for sizes in ({"batch_size": 0, "length": 8}, {"batch_size": 8, "length": 0}):
        with pytest.raises(ValueError, match="must be at least 1, is 0"):
            problem.stream(data_dir, "train", **sizes)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 1000, 65_537])
def test_every_number_comes_once(size):
    order = permute(np.arange(size), size, "epoch", 0, 0)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(size))


def test_each_part_of_the_key_changes_the_order():
    orders = {
        tuple(permute(np.arange(50), 50, *key))
        for key in [("epoch", 0, 0), ("epoch", 0, 1), ("epoch", 1, 0), ("documents", 0, 0)]
    }
    assert len(orders) == 4


def test_orders_stay_what_they_are():
    # Runs that have started resume in this order, so it must never change.
    assert permute(np.arange(10), 10, "epoch", 0, 0).tolist() == [0, 2, 4, 9, 3, 1, 5, 8, 7, 6]
    assert permute(np.array([0, 123_456_789_012]), 1 << 40, "epoch", -5, 2).tolist() == [
        271484231830,
        183855815134,
    ]


@pytest.mark.parametrize("size", [7, 10, 64])
def test_a_position_goes_everywhere_equally_often(size):
    keys = 200 * size
    places = np.array([permute(np.array([0, size - 1]), size, "epoch", s, 1) for s in range(keys)])
    for column in places.T:
        counts = np.bincount(column, minlength=size)
        chi_square = ((counts - 200) ** 2 / 200).sum()
        # Mean size - 1, standard deviation sqrt(2 * (size - 1)): allow five of them.
        assert chi_square < size - 1 + 5 * np.sqrt(2 * (size - 1))


def test_positions_outside_are_refused():
    with pytest.raises(IndexError, match="positions 0 to 5 asked for, there are 0 to 4"):
        permute(np.arange(6), 5, "epoch")
    with pytest.raises(IndexError, match="positions -1 to -1"):
        permute(np.array([-1]), 5, "epoch")
