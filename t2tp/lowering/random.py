"""Random numbers that do not depend on the mesh.

Element `i` of a random tensor is a function of a key and of `i`, its index in the *global* tensor.
Every processor computes just its slice, and the tensor is the same on every mesh, in every process,
and after a restart. The function is Squares (B. Widynski, "Squares: A Fast Counter-Based RNG",
arXiv:2004.06278). It passes BigCrush, takes five multiplications of 64-bit words, and has the same
results on CPUs, on GPUs and with XLA.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

# A counter is step * 2**40 + element, so a tensor may have 2**40 elements, and a run 2**24 steps.
_STEP_SHIFT = 40
# Up to this many elements, NumPy is faster than a device.
_SMALL = 1 << 14
# Compilation takes 0.1 s of a core per device. Eight draws of this many elements save this time.
_WORTH_COMPILING = 1 << 18


def make_key(*parts: object) -> int:
    """Hashes values with a stable `str()`, such as a seed and a name, to a 64-bit odd key."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1


def offsets(shape: Sequence[int], axis: int, along: tf.Tensor) -> tf.Tensor:
    """Multiplies indices along one dimension by the dimension's stride in row-major order.

    Args:
      shape: the global shape.
      axis: index of the dimension.
      along: indices along the dimension, an int32 vector.

    Returns:
      a uint64 tensor [len(along), 1, ..., 1] with a dimension for each of `shape[axis:]`.
    """
    values = tf.cast(along, tf.uint64)
    stride = math.prod(shape[axis + 1 :])
    if stride > 1:
        values *= tf.constant(stride, tf.uint64)
    later = len(shape) - axis - 1
    return tf.reshape(values, [-1] + [1] * later) if later else values


def sum_of_offsets(each: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds the `offsets` of all dimensions; 0 for a scalar."""
    if not each:
        return tf.zeros([], tf.uint64)
    # Starts with the last dimensions, so that intermediate sums have few elements.
    return functools.reduce(tf.add, reversed(each))


def slice_bits(
    key: int, shape: Sequence[int], begin: Sequence[int], size: Sequence[int]
) -> tf.Tensor:
    """Returns 32 random bits (uint32) for each element of a slice, computed eagerly.

    A model has hundreds of small variables. For a few elements TensorFlow takes milliseconds to
    compute `bits`, and NumPy microseconds.
    """
    addends = []
    for axis, (first, count) in enumerate(zip(begin, size, strict=True)):
        along = np.arange(first, first + count, dtype=np.uint64)
        along *= np.uint64(math.prod(shape[axis + 1 :]))
        addends.append(along.reshape([-1] + [1] * (len(shape) - axis - 1)))
    if math.prod(size) > _SMALL:
        return draw(unchanged, key, *addends)
    index = sum(addends, np.zeros([1] * len(shape), np.uint64))
    # As a vector, because NumPy warns when scalars overflow.
    return tf.constant(_numpy_bits(np.uint64(key), index.reshape(-1)).reshape(size))


def _numpy_bits(key: np.uint64, index: np.ndarray) -> np.ndarray:
    """Computes with NumPy what `bits` computes, for a vector of counters."""
    half = np.uint64(32)
    x = y = index * key
    z = y + key
    for addend in (y, z, y):
        x = x * x + addend
        x = (x >> half) | (x << half)
    return ((x * x + z) >> half).astype(np.uint32)


def fold_in(key: int | tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Derives a separate key for each integer of `number`: a uint64 tensor of the same shape."""
    twice = tf.cast(number, tf.uint64) * tf.constant(2, tf.uint64)
    high, low = (tf.cast(bits(key, twice + tf.constant(i, tf.uint64)), tf.uint64) for i in (0, 1))
    whole = tf.bitwise.bitwise_or(tf.bitwise.left_shift(high, tf.constant(32, tf.uint64)), low)
    return tf.bitwise.bitwise_or(whole, tf.constant(1, tf.uint64))


def first_counter(step: tf.Tensor | int) -> tf.Tensor:
    """Returns the counter of the first element in a step: a uint64 scalar."""
    return tf.bitwise.left_shift(tf.cast(step, tf.uint64), tf.constant(_STEP_SHIFT, tf.uint64))


def bits(key: int | tf.Tensor, *addends: tf.Tensor) -> tf.Tensor:
    """Returns 32 random bits (uint32) for each element of a counter, a sum of uint64 tensors.

    The counter of an element in step 0 is its index; see `first_counter`.
    """
    k, counter = tf.convert_to_tensor(key, tf.uint64), functools.reduce(tf.add, addends)
    result = _squares_graph()(k, counter)
    result.set_shape(tf.broadcast_static_shape(k.shape, counter.shape))
    return result


def unchanged(random_bits: tf.Tensor) -> tf.Tensor:
    """Returns the bits."""
    return random_bits


def draw(
    convert: Callable[..., tf.Tensor],
    key: int | tf.Tensor,
    *addends: tf.Tensor | np.ndarray,
    options: tuple = (),
    xla: bool = True,
) -> tf.Tensor:
    """Returns `convert(bits(key, *addends), *options)`; if `xla`, XLA compiles large draws.

    TensorFlow's kernels for CPUs take 60 ns for an element, because they run on one thread and
    store each intermediate result. XLA's one loop takes 2 ns. Both give the same bits, so `convert`
    must not round. Draws of one `convert`, `options` and shape share a compiled function.
    """
    operands = [tf.convert_to_tensor(x, tf.uint64) for x in (key, *addends)]
    shape = functools.reduce(tf.broadcast_static_shape, [x.shape for x in operands])
    if not xla or (shape.num_elements() or 0) < _WORTH_COMPILING:
        return convert(bits(*operands), *options)
    specs = [tf.TensorSpec(x.shape, tf.uint64) for x in operands]
    return _compiled(convert, options, *specs)(*operands)


@functools.cache
def _compiled(
    convert: Callable[..., tf.Tensor], options: tuple, *specs: tf.TensorSpec
) -> tf.types.experimental.ConcreteFunction:
    """Returns a compiled function of the key and the addends of the counter."""

    def drawn(key: tf.Tensor, *addends: tf.Tensor) -> tf.Tensor:
        return convert(bits(key, *addends), *options)

    return tf.function(drawn, jit_compile=True, autograph=False).get_concrete_function(*specs)


@functools.cache
def _squares_graph() -> tf.types.experimental.ConcreteFunction:
    """Returns the traced `_squares`; calling it is cheaper than calling the `tf.function`."""
    return _squares.get_concrete_function()


# Traced once. Adding its twenty or so operations for each use would take a third of the tracing
# time of a training step with dropout.
@tf.function(input_signature=[tf.TensorSpec(None, tf.uint64)] * 2, autograph=False)
def _squares(key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
    half = tf.constant(32, tf.uint64)

    def halves_swapped(x: tf.Tensor) -> tf.Tensor:
        high, low = tf.bitwise.right_shift(x, half), tf.bitwise.left_shift(x, half)
        return tf.bitwise.bitwise_or(high, low)

    x = y = counter * key
    z = y + key
    x = halves_swapped(x * x + y)
    x = halves_swapped(x * x + z)
    x = halves_swapped(x * x + y)
    return tf.cast(tf.bitwise.right_shift(x * x + z, half), tf.uint32)


def uniform(random_bits: tf.Tensor) -> tf.Tensor:
    """Converts bits to float32 in [0, 1), multiples of 2**-24."""
    return tf.cast(tf.bitwise.right_shift(random_bits, tf.constant(8, tf.uint32)), tf.float32) * (
        2.0**-24
    )


def is_below(random_bits: tf.Tensor, fraction: float) -> tf.Tensor:
    """Returns whether `uniform(random_bits)` is below `fraction`."""
    top = tf.bitwise.right_shift(random_bits, tf.constant(8, tf.uint32))
    return tf.cast(top, tf.float32) < fraction * 2.0**24


def _open_uniform(random_bits: tf.Tensor) -> tf.Tensor:
    """Converts bits to float32 in (0, 1), odd multiples of 2**-24, symmetric about 1/2."""
    top = tf.bitwise.right_shift(random_bits, tf.constant(9, tf.uint32))
    return (tf.cast(top, tf.float32) + 0.5) * (2.0**-23)


def normal(random_bits: tf.Tensor) -> tf.Tensor:
    """Converts bits to standard normal float32, by inversion (at most 5.3 standard deviations)."""
    return _inverse_normal(_open_uniform(random_bits))


def truncated_normal(random_bits: tf.Tensor) -> tf.Tensor:
    """Like `normal`, truncated at two standard deviations."""
    below = 0.022750131948179195  # Phi(-2)
    return _inverse_normal(below + _open_uniform(random_bits) * (1.0 - 2.0 * below))


def _inverse_normal(probability: tf.Tensor) -> tf.Tensor:
    """Computes the inverse normal distribution function, with the same bits in any slice.

    CPUs compute a tensor's elements in vectors, and the remainder one by one. The results can
    differ in the last bit, so the tensor is padded until there is no remainder.
    """
    shape = probability.shape
    count = shape.num_elements()
    padded = tf.pad(tf.reshape(probability, [-1]), [[0, -count % 64]], constant_values=0.5)
    return tf.reshape(tf.math.ndtri(padded)[:count], shape)
