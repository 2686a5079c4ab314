"""The tensors that cross a boundary between stages, as one message for each dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp.pipeline.schedule import Action, Schedule
from t2tp.pipeline.slots import Slots, assign_slots


@dataclass(frozen=True)
class MessageKind:
    """The shapes of the tensors that cross a boundary, on one processor.

    Attributes:
      shapes: slice shapes of the tensors.
      dtypes: element types of the tensors.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[tf.DType, ...]

    @property
    def parts(self) -> list[tuple[tuple[int, ...], tf.DType]]:
        """Shape and dtype of each message. Tensors of one dtype travel together."""
        parts = []
        for dtype in dict.fromkeys(self.dtypes):
            shapes = self._shapes_of(dtype)
            size = sum(math.prod(shape) for shape in shapes)
            parts.append((shapes[0] if len(shapes) == 1 else (size,), dtype))
        return parts

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Packs tensors into messages."""
        messages = []
        for _, dtype in self.parts:
            same = [x for x, d in zip(tensors, self.dtypes, strict=True) if d == dtype]
            if len(same) == 1:
                messages.append(same[0])
            else:
                messages.append(tf.concat([tf.reshape(x, [-1]) for x in same], 0))
        return messages

    def unpack(self, messages: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Restores the tensors that `pack` packed."""
        by_dtype: dict[tf.DType, list[tf.Tensor]] = {}
        for message, (shape, dtype) in zip(messages, self.parts, strict=True):
            shapes = self._shapes_of(dtype)
            message = tf.reshape(message, shape)
            if len(shapes) == 1:
                by_dtype[dtype] = [message]
            else:
                split = tf.split(message, [math.prod(s) for s in shapes])
                by_dtype[dtype] = [tf.reshape(x, s) for x, s in zip(split, shapes, strict=True)]
        return [by_dtype[dtype].pop(0) for dtype in self.dtypes]

    def _shapes_of(self, dtype: tf.DType) -> list[tuple[int, ...]]:
        return [s for s, d in zip(self.shapes, self.dtypes, strict=True) if d == dtype]


class Wires:
    """The wires of a schedule: one for each direction and kind of message.

    Attributes:
      chunk_kinds: the kind of message that leaves the layers of each chunk.
      slots: the slots of the schedule.
      kinds: the kind of message of each wire, by name.
      directions: the step to the receiving stage of each wire, by name.
      num_slots: the number of slots for unread messages of each wire, by name.
    """

    def __init__(self, schedule: Schedule, chunk_kinds: Sequence[MessageKind]) -> None:
        self.chunk_kinds = list(chunk_kinds)
        distinct = list(dict.fromkeys(chunk_kinds))
        self._numbers = [distinct.index(kind) for kind in chunk_kinds]
        self.slots: Slots = assign_slots(schedule, self._numbers)
        self.kinds: dict[str, MessageKind] = {}
        self.directions: dict[str, int] = {}
        self.num_slots: dict[str, int] = {}
        for (action, number), count in self.slots.num_arrived.items():
            if count:
                name = f"{action.value}{number}"
                self.kinds[name] = distinct[number]
                self.directions[name] = 1 if action is Action.FORWARD else -1
                self.num_slots[name] = count

    def name(self, action: Action, chunk: int) -> str | None:
        """Returns the wire across the boundary after a chunk's layers; None if there is none."""
        name = f"{action.value}{self._numbers[chunk]}" if chunk >= 0 else ""
        return name if name in self.kinds else None

    def no_messages(self) -> dict[str, list[tf.Tensor]]:
        """Returns empty messages for each wire."""
        return {
            name: [tf.zeros([0], dtype) for _, dtype in kind.parts]
            for name, kind in self.kinds.items()
        }
