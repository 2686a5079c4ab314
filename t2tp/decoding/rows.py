"""What decoding is fed: a batch of rows that begin somewhere and have room to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import tensorflow as tf

from t2tp import mtf
from t2tp.mesh import random
from t2tp.mesh.program import Feature

Number = TypeVar("Number", np.ndarray, tf.Tensor)

# Weyl's sequence of the golden ratio: the keys of neighbours have few digits in common.
_STRIDE = np.uint64(0x9E3779B97F4A7C15).astype(np.int64)

# What the loops need of each row, beside what the model reads.
ROW_FEATURES = ("room", "previous", "positions", "limits", "keys")


@dataclass(frozen=True)
class Rows:
    """A batch of rows.

    Attributes:
      previous: int32 [batch], the last symbol of each row's prefix; 0 without one.
      positions: int32 [batch], of the first symbol to write: the length of the prefix.
      limits: int32 [batch], the most symbols to write, the end among them; 0: the row is empty.
      keys: int64 [batch], what a row's draws depend on.
      length: the dimension of the positions, the prefix's among them.
    """

    previous: mtf.Tensor
    positions: mtf.Tensor
    limits: mtf.Tensor
    keys: mtf.Tensor
    length: mtf.Dimension

    @classmethod
    def of(cls, features: Mapping[str, mtf.Tensor]) -> Rows:
        """Takes them from a program's features."""
        previous, positions, limits, keys = (features[name] for name in ROW_FEATURES[1:])
        return cls(previous, positions, limits, keys, features["room"].shape.dims[-1])

    @property
    def batch(self) -> mtf.Dimension:
        """The dimension of the rows."""
        return self.previous.shape.dims[0]

    @property
    def written(self) -> mtf.Dimension:
        """The dimension of what is written: as long, and whole where a layout splits `length`."""
        return mtf.Dimension("written", self.length.size)

    @property
    def mesh(self) -> mtf.Mesh:
        """The program's mesh."""
        return self.previous.mesh


def row_features(batch: int, length: int, prefix_length: int = 0) -> dict[str, Feature]:
    """The features that every decoding program is fed.

    Args:
      batch: rows.
      length: positions, those of the prefix among them.
      prefix_length: of the longest prefix; 0: there is none.
    """
    rows = mtf.Shape([mtf.Dimension("batch", batch)])
    features = {
        # Its content is never read: it says how many positions there are.
        "room": Feature(rows + mtf.Dimension("length", length), tf.int32),
        "previous": Feature(rows, tf.int32),
        "positions": Feature(rows, tf.int32),
        "limits": Feature(rows, tf.int32),
        "keys": Feature(rows, tf.int64),
    }
    if prefix_length:
        dim = mtf.Dimension("prefix_length", prefix_length)
        features["prefix"] = Feature(rows + dim, tf.int32)
    return features


def most_steps(steps: mtf.Tensor, batch: mtf.Dimension) -> mtf.Tensor:
    """Of what a loop over rows counted, which may differ between the parts of the batch."""
    return mtf.reduce_max(mtf.broadcast(steps, [batch]), output_shape=mtf.Shape([]))


def row_keys(seed: int, numbers: Number) -> Number:
    """The keys of rows: what is drawn for a row depends on the seed and the row's number.

    Args:
      seed: of the run.
      numbers: int64, an array of numpy's or a tensor.

    Returns:
      int64 of the same shape.
    """
    base = np.uint64(random.make_key(seed, "rows")).astype(np.int64)
    return numbers * _STRIDE + base  # modulo 2**64
