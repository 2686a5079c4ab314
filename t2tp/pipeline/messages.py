"""Messages: the tensors that cross a boundary between stages, and the slots that hold them.

The tensors of one dtype form one message.

Tensor parallelism leaves the same activations on all processors of its mesh axis. Each of these
processors sends an equal part of the message to its counterpart in the next stage, where the parts
are gathered again. With `model:8`, only an eighth of the bytes crosses the slow links between the
stages. The gather uses the fast links between the processors of the axis (D. Narayanan et al.,
arXiv:2104.04473, section 4.1).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from t2tp import upstream
from t2tp.mesh.collectives import Collectives
from t2tp.mesh.layout import Layout
from t2tp.mesh.stages import LAYERS
from t2tp.pipeline.boundary import ExitStage
from t2tp.pipeline.schedule import Action, Schedule, TickWork


@dataclass(frozen=True)
class MessageKind:
    """The shapes of the tensors that cross a boundary, on one processor.

    Attributes:
      shapes: slice shapes of the tensors.
      copies: (index, size) of the mesh axes along which all processors have the same tensors.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[tf.DType, ...]
    copies: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of_tensors(cls, tensors: Sequence[upstream.Tensor], layout: Layout) -> MessageKind:
        """Returns the kind of the messages that contain these tensors of a graph."""
        dims = [LAYERS, *(dim.name for x in tensors for dim in x.shape.dims)]
        split = {axis.name for dim in dims for axis in layout.axes_of(dim)}
        axes = enumerate(layout.mesh_shape.dims)
        return cls(
            tuple(layout.slice_size(x.shape) for x in tensors),
            tuple(x.dtype for x in tensors),
            tuple((i, axis.size) for i, axis in axes if axis.name not in split),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes that a processor sends."""
        return sum(size * dtype.size for (size,), dtype in self.parts)

    @property
    def parts(self) -> list[tuple[tuple[int], tf.DType]]:
        """Shape and dtype of a processor's part of each message; each dtype has one message."""
        members = math.prod(members for _, members in self.copies)
        sizes = {dtype: self._size(dtype) for dtype in self.dtypes}
        # A message that cannot be divided equally is sent by all members.
        return [
            ((size if size % members else size // members,), dtype) for dtype, size in sizes.items()
        ]

    def pack(self, tensors: Sequence[tf.Tensor], collectives: Collectives) -> list[tf.Tensor]:
        """Packs tensors into messages; returns this processor's part of each message."""
        messages = []
        for (size,), dtype in self.parts:
            same = [x for x, d in zip(tensors, self.dtypes, strict=True) if d == dtype]
            message = tf.concat([tf.reshape(x, [-1]) for x in same], 0)
            if size < self._size(dtype):
                place = tf.constant(0)
                for axis, members in self.copies:
                    place = place * members + collectives.coordinate(axis)
                message = tf.reshape(message, [-1, size])[place]
            messages.append(message)
        return messages

    def unpack(self, messages: Sequence[tf.Tensor], collectives: Collectives) -> list[tf.Tensor]:
        """Restores the tensors that `pack` packed."""
        by_dtype: dict[tf.DType, list[tf.Tensor]] = {}
        for message, (shape, dtype) in zip(messages, self.parts, strict=True):
            message = tf.reshape(message, shape)
            if math.prod(shape) < self._size(dtype):
                message = collectives.gather(message, [axis for axis, _ in self.copies])
            shapes = self._shapes_of(dtype)
            split = tf.split(tf.reshape(message, [-1]), [math.prod(s) for s in shapes])
            by_dtype[dtype] = [tf.reshape(x, s) for x, s in zip(split, shapes, strict=True)]
        return [by_dtype[dtype].pop(0) for dtype in self.dtypes]

    def _size(self, dtype: tf.DType) -> int:
        """Returns the total number of elements in the tensors of a dtype."""
        return sum(math.prod(shape) for shape in self._shapes_of(dtype))

    def _shapes_of(self, dtype: tf.DType) -> list[tuple[int, ...]]:
        return [s for s, d in zip(self.shapes, self.dtypes, strict=True) if d == dtype]


def message_kinds(exit_op: ExitStage, layout: Layout) -> tuple[MessageKind, MessageKind]:
    """Returns the kinds of the messages with a chunk's outputs, and with their gradients."""
    outputs, learned = exit_op.outputs, exit_op.outputs[: exit_op.learned]
    return MessageKind.of_tensors(outputs, layout), MessageKind.of_tensors(learned, layout)


@dataclass(frozen=True)
class Slots:
    """The slots of a schedule: memory for arrived messages and saved activations.

    A slot is reused once its contents have been read for the last time. The number of slots is the
    largest number in use at the same time. With 1F1B on 2 stages, stage 0 saves activations of at
    most 2 microbatches, for any number of microbatches:

        tick       0    1    2    3    4    5    6
        stage 0    F0   F1        B0   F2   B1
        its slot   0    1         0    0    1       microbatch 2 reuses slot 0 after B0

    All stages have as many slots as the stage that needs most.

    Attributes:
      saved: slot of a forward pass's saved activations, by (stage, microbatch, chunk).
      arrived: slot of the message for an entry, by (stage, entry), for entries that read a message.
      num_saved: number of slots for the saved activations of each chunk.
      num_arrived: number of slots for messages, by (action, kind of message).
    """

    saved: dict[tuple[int, int, int], int]
    arrived: dict[tuple[int, TickWork], int]
    num_saved: Counter[int]
    num_arrived: Counter[tuple[Action, int]]


def assign_slots(schedule: Schedule, kinds: Sequence[int]) -> Slots:
    """Assigns slots; each of the `kinds` of messages has its own slots.

    Messages of different shapes have different kinds. `kinds` has the kind of each chunk's
    messages.
    """
    at = schedule.ticks_of()
    last = Action.WEIGHTS if schedule.splits_backward else Action.BACKWARD
    # The ticks (begin, end) in which a slot is in use, for each stage.
    held: defaultdict[tuple[int, int], dict] = defaultdict(dict)
    read: defaultdict[tuple[int, tuple[Action, int]], dict] = defaultdict(dict)
    for (stage, entry), tick in at.items():
        if entry.action is Action.FORWARD and schedule.trains:
            end = at[stage, entry._replace(action=last)]
            held[stage, entry.chunk][stage, entry.microbatch, entry.chunk] = tick, end
        sender = schedule.requirement(stage, entry)
        if sender is not None:
            kind = kinds[message_chunk(sender[1], entry)]
            read[stage, (entry.action, kind)][stage, entry] = at[sender], tick
    saved, num_saved = _assign(held)
    arrived, num_arrived = _assign(read)
    return Slots(saved, arrived, num_saved, num_arrived)


def message_chunk(sent: TickWork, read: TickWork) -> int:
    """Returns the chunk whose outputs, or output gradients, a message contains."""
    return sent.chunk if sent.action is Action.FORWARD else read.chunk


def _assign(spans: Mapping[tuple[int, Any], dict]) -> tuple[dict, Counter]:
    """Returns a slot for each span (begin, end) so that spans in one slot do not overlap.

    `spans` has the spans of each stage and table. The second result is the largest number of slots
    of each table on any stage.
    """
    slots, counts = {}, Counter[Any]()
    for (_, table), in_table in spans.items():
        ends: list[int] = []
        for key, (begin, end) in sorted(in_table.items(), key=lambda item: item[1]):
            free = next((slot for slot, until in enumerate(ends) if until <= begin), len(ends))
            ends[free : free + 1] = [end]
            slots[key] = free
        counts[table] = max(counts[table], len(ends))
    return slots, counts


class Wires:
    """The wires of a schedule.

    A wire carries all messages of one kind in one direction: from each stage to the next one, or to
    the previous one.

    Attributes:
      kinds: the kind of message of each wire, by name.
      directions: the receiving stage minus the sending stage of each wire, by name: 1 or -1.
      num_slots: the number of slots for unread messages of each wire, by name.
    """

    def __init__(
        self, schedule: Schedule, chunk_kinds: Sequence[tuple[MessageKind, MessageKind]]
    ) -> None:
        """Assigns wires; each chunk has the kinds of its outputs and of their gradients."""
        distinct = list(dict.fromkeys(chunk_kinds))
        self._numbers = [distinct.index(kind) for kind in chunk_kinds]
        self.slots: Slots = assign_slots(schedule, self._numbers)
        self.kinds: dict[str, MessageKind] = {}
        self.directions: dict[str, int] = {}
        self.num_slots: dict[str, int] = {}
        for (action, number), count in self.slots.num_arrived.items():
            name = f"{action.value}{number}"
            self.kinds[name] = distinct[number][action is not Action.FORWARD]
            self.directions[name] = 1 if action is Action.FORWARD else -1
            self.num_slots[name] = count

    def name(self, action: Action, chunk: int) -> str:
        """Returns the name of the wire across the boundary after a chunk's layers."""
        return f"{action.value}{self._numbers[chunk]}"

    def no_messages(self) -> dict[str, list[tf.Tensor]]:
        """Returns empty messages for each wire."""
        return {
            name: [tf.zeros([0], dtype) for _, dtype in kind.parts]
            for name, kind in self.kinds.items()
        }
