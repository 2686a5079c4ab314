"""Fields of pictures."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from t2tp.problems.columns import Column
from t2tp.problems.fields import FLOAT, INT
from t2tp.problems.stream import EMPTY, FeatureSpec

DIMENSIONS = ("batch", "height", "width", "channels")


class PixelField:
    """Pictures that are stored as they are: [batch, height, width, channels].

    As float32 the values are divided by the largest one, as int32 they are what is stored.
    """

    def __init__(self, column: Column, shape: tuple[int, int, int], scale: float | None):
        """Takes the pictures.

        Args:
            column: of their values.
            shape: height, width and channels.
            scale: the largest value, for float32; None: int32.
        """
        self.spec = pixel_spec(scale)
        self.shape = shape
        self._column = column
        self._scale = scale

    def read(self, rows: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads parts of some rows' pictures."""
        size = int(np.prod(self.shape))
        whole = np.zeros((len(rows), *self.shape), np.uint8)
        for place, row in enumerate(rows.tolist()):
            if row != EMPTY:
                whole[place] = self._column.span(row * size, (row + 1) * size).reshape(self.shape)
        return finish(whole[(slice(None), *parts)], self._scale)


class EncodedPixelField:
    """Pictures that are stored compressed: [batch, height, width, channels]."""

    def __init__(
        self,
        column: Column,
        shape: tuple[int, int, int],
        scale: float | None,
        decode: Callable[[bytes], np.ndarray],
    ):
        """Takes the pictures; see `PixelField`. `decode` makes one of its bytes."""
        self.spec = pixel_spec(scale)
        self.shape = shape
        self._column = column
        self._scale = scale
        self._decode = decode

    def read(self, rows: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads parts of some rows' pictures, each of which is decoded whole."""
        whole = np.zeros((len(rows), *self.shape), np.uint8)

        def decode(place: int) -> None:
            if rows[place] != EMPTY:
                whole[place] = self._decode(self._column.example(int(rows[place])).tobytes())

        # Pillow decodes outside Python's lock, so as many threads as cores do it side by side.
        deque(_decoders().map(decode, range(len(rows))), maxlen=0)
        return finish(whole[(slice(None), *parts)], self._scale)


@cache
def _decoders() -> ThreadPoolExecutor:
    """Threads that decode, of which all fields of this process make use."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "decode")


def pixel_spec(scale: float | None) -> FeatureSpec:
    """Returns the spec of pictures."""
    return FeatureSpec(DIMENSIONS, INT if scale is None else FLOAT)


def finish(values: np.ndarray, scale: float | None) -> np.ndarray:
    """Makes the values those of a feature."""
    return values.astype(INT) if scale is None else values.astype(FLOAT) / FLOAT.type(scale)
