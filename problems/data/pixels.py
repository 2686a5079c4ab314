"""Fields of images."""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np

from t2tp.problems.data.batch_stream import EMPTY, FeatureSpec
from t2tp.problems.data.columns import Column
from t2tp.problems.data.fields import FLOAT, INT

DIMENSIONS = ("batch", "height", "width", "channels")


@dataclass(frozen=True, eq=False)
class PixelField:
    """Images stored as pixels: [batch, height, width, channels].

    Attributes:
      shape: height, width and channels.
      scale: divisor of the values, to read float32 from 0 to 1; None: read int32.
    """

    column: Column
    shape: tuple[int, int, int]
    scale: float | None

    @property
    def spec(self) -> FeatureSpec:
        """The spec of the images."""
        return pixel_spec(self.scale)

    def read(self, rows: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads slices of the images of rows."""
        size = int(np.prod(self.shape))
        images = np.zeros((len(rows), *self.shape), np.uint8)
        for index, row in enumerate(rows.tolist()):
            if row != EMPTY:
                images[index] = self.column.span(row * size, (row + 1) * size).reshape(self.shape)
        return finish(images[(slice(None), *parts)], self.scale)


@dataclass(frozen=True, eq=False)
class EncodedPixelField(PixelField):
    """Images stored compressed: [batch, height, width, channels].

    `column` has the bytes of the image files, and `decode` decodes them.
    """

    decode: Callable[[bytes], np.ndarray]

    def read(self, rows: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads slices of the images of rows; decodes the full images."""
        images = np.zeros((len(rows), *self.shape), np.uint8)

        def decode(index: int) -> None:
            if rows[index] != EMPTY:
                images[index] = self.decode(self.column.example(int(rows[index])).tobytes())

        # Pillow releases the GIL while it decodes, so that threads run in parallel.
        deque(_decoders().map(decode, range(len(rows))), maxlen=0)
        return finish(images[(slice(None), *parts)], self.scale)


@cache
def _decoders() -> ThreadPoolExecutor:
    """Returns the pool of decoding threads, shared by all fields of this process."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "decode")


def pixel_spec(scale: float | None) -> FeatureSpec:
    """Returns the spec of images."""
    return FeatureSpec(DIMENSIONS, INT if scale is None else FLOAT)


def finish(values: np.ndarray, scale: float | None) -> np.ndarray:
    """Converts values to the feature's dtype and scale."""
    return values.astype(INT) if scale is None else values.astype(FLOAT) / FLOAT.type(scale)
