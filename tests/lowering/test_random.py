import functools

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.lowering import random
from t2tp.ops.attention.weight_dropout import kept_of_pairs
from t2tp.program.initializers import initial_slice


def bits(count, seed=0, step=0):
    index = tf.cast(tf.range(count, dtype=tf.int64), tf.uint64)
    return random.bits(random.make_key(seed), index + random.first_counter(step)).numpy()


def test_known_values():
    """These numbers must never change, because resumed runs depend on them."""
    key = 0xC58EFD154CE32F6D  # a key of the reference implementation
    index = tf.constant([0, 1, 2, 12345678901], tf.uint64)

    def squares32(ctr):
        mask = (1 << 64) - 1
        x = y = ctr * key & mask
        z = (y + key) & mask
        for add in (y, z, y):
            x = (x * x + add) & mask
            x = (x >> 32) | (x << 32) & mask
        return ((x * x + z) & mask) >> 32

    wanted = [squares32(int(i)) for i in index.numpy()]
    assert random.bits(key, index).numpy().tolist() == wanted


CASES = [
    ([], [], []),
    ([7], [3], [4]),
    ([1 << 20, 1 << 19], [(1 << 20) - 3, 5], [3, 2]),  # indices beyond 32 bits
    ([5, 1, 40, 90], [1, 0, 2, 3], [4, 1, 30, 80]),
]


@pytest.mark.parametrize(("shape", "begin", "size"), CASES)
def test_the_bits_of_a_slice_are_those_of_its_elements_in_the_whole(shape, begin, size):
    key = random.make_key("a slice")
    along = [tf.range(first, first + n) for first, n in zip(begin, size, strict=True)]
    offsets = [random.offsets(shape, axis, index) for axis, index in enumerate(along)]
    wanted = random.bits(key, tf.zeros([], tf.uint64), *offsets).numpy()
    np.testing.assert_array_equal(random.slice_bits(key, shape, begin, size), wanted, strict=True)


DRAWN = [(random.unchanged, ()), (random.is_below, (1 / 3,)), (kept_of_pairs, (60_000,))]


@pytest.mark.parametrize(("convert", "options"), DRAWN)
def test_xla_and_the_kernels_draw_the_same(convert, options):
    rows = tf.cast(tf.range(1 << 40, (1 << 40) + (64 << 20), 1 << 20)[:, None], tf.uint64)
    places = tf.cast(tf.range(4096), tf.uint64)
    draws = {}
    for xla in (True, False):
        drawn = functools.partial(random.draw, convert, 5, options=options, xla=xla)
        traced = tf.function(drawn, autograph=False).get_concrete_function(rows, places)
        compiled = [
            op for op in traced.graph.get_operations() if "_XlaMustCompile" in op.node_def.attr
        ]
        assert any(op.get_attr("_XlaMustCompile") for op in compiled) == xla
        draws[xla] = traced(rows, places).numpy()
    np.testing.assert_array_equal(draws[True], draws[False], strict=True)


def test_neighbours_steps_and_seeds_are_uncorrelated():
    count = 1 << 16
    u = random.uniform(tf.constant(bits(count))).numpy().astype(np.float64)
    others = {
        "neighbour": np.roll(u, 1),
        "next step": random.uniform(tf.constant(bits(count, step=1))).numpy(),
        "next seed": random.uniform(tf.constant(bits(count, seed=1))).numpy(),
    }
    for name, other in others.items():
        assert abs(np.corrcoef(u, other)[0, 1]) < 4 / np.sqrt(count), name


@pytest.mark.parametrize("fraction", [0.9, 0.1, 1 / 3, 1.0, 2.0**-24])
def test_those_below_a_fraction_are_those_whose_number_is(fraction):
    nearest = round(fraction * 2**24) + np.arange(-3, 4)
    spread = np.random.default_rng(0).integers(2**24, size=1000)
    bits = tf.constant(np.clip([*nearest, *spread], 0, 2**24 - 1).astype(np.uint32) * 256)
    expected = random.uniform(bits) < fraction
    np.testing.assert_array_equal(random.is_below(bits, fraction), expected)


def test_distributions_have_their_moments():
    draws = tf.constant(bits(1 << 18))
    u = random.uniform(draws).numpy().astype(np.float64)
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.003 and abs(u.var() - 1 / 12) < 0.002
    n = random.normal(draws).numpy().astype(np.float64)
    assert np.isfinite(n).all()
    assert abs(n.mean()) < 0.01 and abs(n.std() - 1) < 0.01 and abs((n**4).mean() - 3) < 0.1
    t = random.truncated_normal(draws).numpy().astype(np.float64)
    assert np.abs(t).max() <= 2.0001 and abs(t.std() - 0.8796) < 0.01


INITIALIZERS = [
    None,
    tf.compat.v1.random_normal_initializer(stddev=0.3),
    tf.compat.v1.truncated_normal_initializer(mean=1.0, stddev=0.3),
    tf.compat.v1.random_uniform_initializer(-1, 3),
    tf.compat.v1.variance_scaling_initializer(2.0),
    tf.compat.v1.glorot_normal_initializer(),
    tf.keras.initializers.HeNormal(),
    tf.compat.v1.constant_initializer(7.0),
    lambda shape, dtype: tf.random.normal(shape, dtype=dtype),
    lambda shape, dtype: tf.reshape(tf.range(np.prod(shape), dtype=dtype), shape),
]


@pytest.mark.parametrize("initializer", INITIALIZERS)
def test_a_slice_of_an_initial_value_is_that_part_of_the_whole(initializer):
    def part(begin, size):
        return initial_slice(initializer, "w", [6, 4], begin, size, tf.float32, seed=3).numpy()

    whole = part([0, 0], [6, 4])
    assert not np.isnan(whole).any()
    np.testing.assert_array_equal(part([2, 1], [3, 2]), whole[2:5, 1:3])


PAIRS = [
    (None, tf.keras.initializers.GlorotUniform(seed=1)),
    (tf.compat.v1.glorot_normal_initializer(), tf.keras.initializers.GlorotNormal(seed=1)),
    (tf.keras.initializers.HeUniform(), tf.keras.initializers.HeUniform(seed=1)),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_initial_values_are_distributed_as_the_initializer_says(ours, theirs):
    shape = [300, 200]
    mine = initial_slice(ours, "w", shape, [0, 0], shape, tf.float32, seed=0).numpy()
    reference = theirs(shape).numpy()
    assert abs(mine.std() / reference.std() - 1) < 0.02
    assert abs(mine.max() / reference.max() - 1) < 0.05
    assert abs(mine.mean()) < 0.02 * mine.std()


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16, tf.float32])
def test_uniform_stays_below_its_end(dtype):
    shape = mtf.Shape([mtf.Dimension("a", 1 << 16)])

    def step(mesh, features):
        return {
            "unit": mtf.random_uniform(mesh, shape, dtype=dtype),
            "other": mtf.random_uniform(mesh, shape, minval=1.0, maxval=2.0, dtype=dtype),
        }

    outputs = t2tp.Program(step)()
    for name, low in (("unit", 0.0), ("other", 1.0)):
        values = np.asarray(outputs[name], np.float64)
        assert low <= values.min() and values.max() < low + 1.0
        assert abs(values.mean() - low - 0.5) < 0.01


@pytest.mark.parametrize("span", [0, 1 << 32])
def test_a_span_that_cannot_be_drawn_is_refused(span):
    def step(mesh, features):
        shape = mtf.Shape([mtf.Dimension("a", 4)])
        return {"x": mtf.random_uniform(mesh, shape, maxval=span, dtype=tf.int64)}

    with pytest.raises(ValueError, match="the span must be 1 to 2"):
        t2tp.Program(step)()
