"""Ranges of a tensor, and those that it does not have."""

from __future__ import annotations

import numpy as np
import pytest

import t2tp
from t2tp import mtf


def sliced(begin, size, name="a"):
    program = t2tp.Program(
        lambda mesh, given: {"y": mtf.slice(given["x"], begin, size, name)},
        {"x": t2tp.Feature("a:4;b:3")},
    )
    return program({"x": np.arange(12.0).reshape(4, 3)})["y"]


def test_a_range():
    np.testing.assert_array_equal(sliced(1, 3), np.arange(3.0, 12.0).reshape(3, 3))


@pytest.mark.parametrize(("begin", "size"), [(2, 5), (-1, 2), (4, 1), (1, -1)])
def test_a_range_beyond_the_end_is_refused(begin, size):
    with pytest.raises(ValueError, match="'a', which has 4 in 'x:0': .* within 0 to 4"):
        sliced(begin, size)


def test_a_dimension_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="has no dimension 'c'"):
        sliced(0, 1, "c")
