"""The format of generated images: models generate one channel of one pixel at a time."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class GeneratedImages(NamedTuple):
    """The format of generated images.

    Attributes:
      shape: height, width and channels.
      levels: number of possible values of a pixel's channel; `levels` - 1 is full brightness.
    """

    shape: tuple[int, int, int]
    levels: int

    @property
    def num_values(self) -> int:
        """The number of values of an image; each value is a token."""
        return math.prod(self.shape)

    def from_tokens(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Converts sequences of tokens to images: uint8 [images, height, width, channels]."""
        return np.array(tokens, np.uint8).reshape(len(tokens), *self.shape)

    def brightness(self, values: np.ndarray) -> np.ndarray:
        """Scales values from 0 to `levels - 1` to uint8 from 0 to 255, of the same shape."""
        return (values.astype(np.float32) * 255 / (self.levels - 1)).round().astype(np.uint8)
