"""A stateless pseudorandom permutation: the index at position i of a shuffle, in O(1).

A stored permutation of n examples costs n numbers per epoch, and a run that resumes within an epoch
must compute it again. This module encrypts a position instead: a cipher on the numbers below n is a
permutation of them, and each key gives another permutation. The cipher is a balanced Feistel
network on the next power of four. Results of n or above are encrypted again until they are below n
("cycle walking"; Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002, section 4).

Only integer arithmetic modulo 2**64 is used, so the order is the same on every machine.
"""

import hashlib
import operator

import numpy as np

# Four rounds suffice for large domains; small domains need more rounds to look random.
_ROUNDS = 8

# Positions encrypted at a time, to bound the memory for intermediate values.
_PIECE = 1 << 16

# Constants of the finalizer of SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom
# Number Generators, 2014, figure 16).
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


def permute(positions: np.ndarray, size: int, *key: int | str) -> np.ndarray:
    """Applies the key's permutation of range(size) to positions.

    Args:
      positions: integers in range(size), of any shape.
      size: number of elements, at least 1.
      *key: identifies the permutation, for instance ("epoch", seed, epoch).

    Returns:
      int64 array of the shape of `positions`. Over all positions each number of range(size)
      occurs once.

    Raises:
      IndexError: a position is outside range(size).
    """
    positions = np.asarray(positions, np.int64)
    if positions.size and not (positions.min() >= 0 and positions.max() < size):
        raise IndexError(
            f"positions {positions.min()} to {positions.max()} asked for, there are 0 to {size - 1}"
        )
    half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    keys = _round_keys(key)
    permuted = np.empty(positions.size, np.int64)
    for begin in range(0, positions.size, _PIECE):
        numbers = positions.ravel()[begin : begin + _PIECE].astype(np.uint64)
        numbers = _encrypt(numbers, half_bits, keys)
        outside = np.flatnonzero(numbers >= size)
        while outside.size:
            numbers[outside] = _encrypt(numbers[outside], half_bits, keys)
            outside = outside[numbers[outside] >= size]
        permuted[begin : begin + _PIECE] = numbers
    return permuted.reshape(positions.shape)


def _round_keys(key: tuple[int | str, ...]) -> np.ndarray:
    """Returns a uint64 per round; the result for a key must never change."""
    # The repr of a NumPy integer differs from the repr of the same Python integer.
    plain = tuple(each if isinstance(each, str) else operator.index(each) for each in key)
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8 * _ROUNDS).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64)


def _encrypt(numbers: np.ndarray, half_bits: np.uint64, keys: np.ndarray) -> np.ndarray:
    """Permutes the uint64 numbers below 4**half_bits."""
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = numbers >> half_bits, numbers & mask
    for key in keys:
        left, right = right, left ^ (mix(right ^ key) & mask)
    return (left << half_bits) | right


def mix(bits: np.ndarray) -> np.ndarray:
    """Mixes the bits of uint64 numbers; 0 stays 0."""
    bits = (bits ^ (bits >> np.uint64(30))) * _MULTIPLIER_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MULTIPLIER_2
    return bits ^ (bits >> np.uint64(31))
