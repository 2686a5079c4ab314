"""The input of decoding: a batch of prompts, with positions for new tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from t2tp import mtf
from t2tp.lowering import random
from t2tp.models.autoregressive import FIRST_TOKEN
from t2tp.program.program import Feature

Array = TypeVar("Array", np.ndarray, tf.Tensor)

# A Weyl sequence with the golden ratio, so that the keys of adjacent rows differ in many bits.
_STRIDE = np.uint64(0x9E3779B97F4A7C15).astype(np.int64)

# The features that the decoding loops need in addition to the model's features.
ROW_FEATURES = ("room", "previous", "positions", "limits", "keys")


@dataclass(frozen=True)
class PromptBatch:
    """A batch of prompts.

    Attributes:
      previous: int32 [batch], the last token of each row's prefix; 0 if the prefix is empty.
      positions: int32 [batch], the position of the first new token: the prefix's length.
      limits: int32 [batch], max number of new tokens, EOS included; 0: generate none.
      keys: int64 [batch], the keys of the rows' random numbers.
      length: the dimension of the positions, including the prefix.
    """

    previous: mtf.Tensor
    positions: mtf.Tensor
    limits: mtf.Tensor
    keys: mtf.Tensor
    length: mtf.Dimension

    @classmethod
    def from_features(cls, features: Mapping[str, mtf.Tensor]) -> PromptBatch:
        """Creates a batch from a program's features."""
        previous, positions, limits, keys = (features[name] for name in ROW_FEATURES[1:])
        return cls(previous, positions, limits, keys, features["room"].shape.dims[-1])

    @property
    def batch(self) -> mtf.Dimension:
        """The dimension of the rows."""
        return self.previous.shape.dims[0]

    @property
    def written(self) -> mtf.Dimension:
        """The dimension of the new tokens: `length`, with a name that no layout splits."""
        return mtf.Dimension("written", self.length.size)

    @property
    def mesh(self) -> mtf.Mesh:
        """The program's mesh."""
        return self.previous.mesh


def row_features(
    batch: int, length: int, prefix_length: int = 0, inputs_length: int = 0
) -> dict[str, Feature]:
    """Returns the features of a decoding program; `prompt_arrays` computes their values.

    `length` includes the prefix. If `prefix_length` is 0, there are no prefixes; if `inputs_length`
    is 0, there are no inputs.
    """
    rows = mtf.Shape([mtf.Dimension("batch", batch)])
    features = {
        # Its values are never read; it only provides the dimension `length`.
        "room": Feature(rows + mtf.Dimension("length", length), tf.int32),
        "previous": Feature(rows, tf.int32),
        "positions": Feature(rows, tf.int32),
        "limits": Feature(rows, tf.int32),
        "keys": Feature(rows, tf.int64),
    }
    if prefix_length:
        dim = mtf.Dimension("prefix_length", prefix_length)
        features["prefix"] = Feature(rows + dim, tf.int32)
    if inputs_length:
        features |= sequence_features("inputs", batch, inputs_length)
    return features


def prompt_arrays(
    prefix: Array, sizes: Array, limits: Array, keys: Array, length: int
) -> dict[str, Array]:
    """Lays out prompts as `row_features` declares them, without the inputs.

    Args:
      prefix: int32 [rows, prefix_length], padded with zeros; prefix_length may be 0.
      sizes: int32 [rows], the number of tokens in each prefix.
      limits: int32 [rows], max number of new tokens, EOS included.
      keys: int64 [rows], results of `row_keys`.
      length: number of positions, including the prefix.
    """
    xp = _array_namespace(prefix)
    rows, prefix_length = prefix.shape
    is_last = sizes[:, None] == xp.arange(1, prefix_length + 1, dtype=np.int32)
    features = {
        "room": xp.zeros([rows, length], np.int32),
        "previous": xp.sum(xp.where(is_last, prefix, xp.zeros_like(prefix)), 1, dtype=np.int32),
        # A full row (limit 0) has no position for a new token, and gets the row's last position.
        "positions": xp.minimum(sizes, np.int32(length - 1)),
        "limits": limits,
        "keys": keys,
    }
    return features | ({"prefix": prefix} if prefix_length else {})


def sequence_features(name: str, batch: int, length: int) -> dict[str, Feature]:
    """Returns the features of sequences; see `sequence_arrays`."""
    shape = mtf.Shape([mtf.Dimension("batch", batch), mtf.Dimension("length", length)])
    names = (name, f"{name}_segmentation", f"{name}_position")
    return {each: Feature(shape, tf.int32) for each in names}


def sequence_arrays(name: str, tokens: Array, sizes: Array) -> dict[str, Array]:
    """Lays out sequences as `sequence_features` declares them: one segment per row, then zeros.

    `tokens` are int32 [rows, length], padded with zeros; `sizes` are the rows' numbers of tokens.
    """
    xp = _array_namespace(tokens)
    positions = xp.arange(tokens.shape[1], dtype=np.int32)
    segments = xp.asarray(positions < sizes[:, None], np.int32)
    names = (name, f"{name}_segmentation", f"{name}_position")
    return dict(zip(names, (tokens, segments, positions * segments), strict=True))


def first_token(
    features: dict[str, Feature], batch: dict[str, np.ndarray], tokens: Sequence[int | None]
) -> tuple[dict[str, Feature], dict[str, np.ndarray]]:
    """Adds the feature `first_token`, int32 [batch], to features and arrays, if the rows have it.

    `tokens` has each row's input token at position 0, or None. The batch may have further, empty
    rows.

    Raises:
      ValueError: only some rows have a first token.
    """
    given = [token for token in tokens if token is not None]
    if not given:
        return features, batch
    if len(given) < len(tokens):
        raise ValueError("some rows have a first token and some have none: run them separately")
    rows = next(iter(features.values())).shape.dims[0]
    values = np.zeros([rows.size], np.int32)
    values[: len(given)] = given
    feature = Feature(mtf.Shape([rows]), tf.int32)
    return features | {FIRST_TOKEN: feature}, batch | {FIRST_TOKEN: values}


def pad(
    sequences: Sequence[Sequence[int]], rows: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns sequences as zero-padded int32 [rows, length], and their sizes, int32 [rows]."""
    tokens, sizes = np.zeros([rows, length], np.int32), np.zeros([rows], np.int32)
    for row, sequence in enumerate(sequences):
        sizes[row] = len(sequence)
        tokens[row, : len(sequence)] = sequence
    return tokens, sizes


def _array_namespace(array: np.ndarray | tf.Tensor) -> Any:
    """Returns `numpy`; for tensors (in exported models), `tf.experimental.numpy`."""
    return np if isinstance(array, np.ndarray) else tf.experimental.numpy


def row_keys(seed: int, numbers: Array) -> Array:
    """Returns int64 keys of the rows' random numbers, from the run's seed and the rows' indices."""
    base = np.uint64(random.make_key(seed, "rows")).astype(np.int64)
    return numbers * _STRIDE + base  # modulo 2**64
