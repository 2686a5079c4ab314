"""What goes from stage to stage: the tensors of a boundary, as one message for each dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class MessageKind:
    """The shapes of the tensors that cross a boundary, on one processor.

    Attributes:
      shapes: of the tensors.
      dtypes: of the tensors.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[tf.DType, ...]

    @property
    def parts(self) -> list[tuple[tuple[int, ...], tf.DType]]:
        """Shape and dtype of each message: tensors of one dtype travel together."""
        found = []
        for dtype in dict.fromkeys(self.dtypes):
            shapes = [s for s, d in zip(self.shapes, self.dtypes, strict=True) if d == dtype]
            size = sum(math.prod(shape) for shape in shapes)
            found.append((shapes[0] if len(shapes) == 1 else (size,), dtype))
        return found

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Makes the messages of tensors."""
        messages = []
        for _, dtype in self.parts:
            same = [x for x, d in zip(tensors, self.dtypes, strict=True) if d == dtype]
            if len(same) == 1:
                messages.append(same[0])
            else:
                messages.append(tf.concat([tf.reshape(x, [-1]) for x in same], 0))
        return messages

    def unpack(self, messages: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Makes the tensors of messages."""
        by_dtype: dict[tf.DType, list[tf.Tensor]] = {}
        for message, (shape, dtype) in zip(messages, self.parts, strict=True):
            shapes = [s for s, d in zip(self.shapes, self.dtypes, strict=True) if d == dtype]
            message = tf.reshape(message, shape)
            if len(shapes) == 1:
                by_dtype[dtype] = [message]
            else:
                split = tf.split(message, [math.prod(s) for s in shapes])
                by_dtype[dtype] = [tf.reshape(x, s) for x, s in zip(split, shapes, strict=True)]
        return [by_dtype[dtype].pop(0) for dtype in self.dtypes]
