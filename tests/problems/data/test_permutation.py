import numpy as np
import pytest

from t2tp.problems.data.permutation import permute


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
