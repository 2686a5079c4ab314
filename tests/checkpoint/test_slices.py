import pytest
import tensorflow as tf

from t2tp.checkpoint.slices import Slice, check_tiling


def cut(begin, size, shape=(8, 6), dtype=tf.float32):
    return Slice("w", shape, begin, size, dtype)


def test_spec_is_tensorflows():
    part = Slice("e", (8192, 256), (0, 128), (2048, 128), tf.float32)
    assert part.spec == "8192 256 0,2048:128,128"
    assert Slice.full("w", [8, 6], tf.float32).spec == Slice.full("s", (), tf.float32).spec == ""


def test_what_is_no_slice_is_refused():
    with pytest.raises(ValueError, match="argument 2"):
        cut((4,), (4, 6))


OUTSIDE = [
    ((0, 0), (9, 6)),
    ((7, 0), (2, 6)),
    ((-1, 0), (2, 6)),
    ((0, 0), (0, 6)),
    ((0, 0), (4, -1)),
]


@pytest.mark.parametrize(("begin", "size"), OUTSIDE)
def test_a_slice_outside_its_tensor_is_refused(begin, size):
    with pytest.raises(ValueError, match=r"'w'.*not inside the tensor's shape \(8, 6\)"):
        cut(begin, size)


TILINGS = [
    [cut((0, 0), (8, 6))],
    [cut((r, c), (4, 3)) for r in (0, 4) for c in (0, 3)],
    [cut((0, 0), (3, 6)), cut((3, 0), (5, 2)), cut((3, 2), (5, 4))],
    [Slice.full("w", (), tf.bool)],
    [Slice.full("w", (0, 3), tf.bool)],
]


@pytest.mark.parametrize("slices", TILINGS)
def test_a_tiling_is_accepted(slices):
    check_tiling(slices)


REFUSED = [
    ([cut((0, 0), (4, 6))], r"The 1 slices of 'w' have 24 elements.*48 of its shape \(8, 6\)"),
    ([cut((0, 0), (8, 6)), cut((5, 3), (1, 1))], "have 49 elements"),
    # Together as many elements as the tensor has, but some twice and some never.
    (
        [cut((0, 0), (4, 6)), cut((2, 0), (4, 6))],
        "have 48 elements together, and have to cover the 48",
    ),
    ([Slice.full("w", (), tf.bool)] * 2, "have 2 elements"),
    ([cut((0, 0), (4, 6)), cut((4, 0), (4, 6), dtype=tf.int32)], "disagree.*float32.*int32"),
    ([cut((0, 0), (4, 6)), cut((4, 0), (4, 6), shape=(9, 6))], r"disagree.*\(8, 6\).*\(9, 6\)"),
]


@pytest.mark.parametrize(("slices", "message"), REFUSED)
def test_what_is_no_tiling_is_refused(slices, message):
    with pytest.raises(ValueError, match=message):
        check_tiling(slices)
