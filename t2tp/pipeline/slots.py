"""Assigns slots: memory for arrived messages and saved activations.

A slot is reused once its contents have been read for the last time. The number of slots is the
largest number in use at the same time. With 1F1B on 2 stages, stage 0 saves activations of at most
2 microbatches, for any number of microbatches:

    tick       0    1    2    3    4    5    6
    stage 0    F0   F1        B0   F2   B1
    its slot   0    1         0    0    1       microbatch 2 reuses slot 0 after B0
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from t2tp.pipeline.schedule import Action, Schedule, TickWork


@dataclass(frozen=True)
class Slots:
    """The slots of a schedule. All stages have as many slots as the stage that needs most.

    Attributes:
      saved: slot of a forward pass's saved activations, by (stage, microbatch, chunk).
      arrived: slot of the message for an entry, by (stage, entry), for entries that read a message.
      num_saved: number of slots for the saved activations of each chunk.
      num_arrived: number of slots for messages, by (action, kind of message).
    """

    saved: dict[tuple[int, int, int], int]
    arrived: dict[tuple[int, TickWork], int]
    num_saved: list[int]
    num_arrived: dict[tuple[Action, int], int]


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
    saved: dict[tuple[int, int, int], int] = {}
    arrived: dict[tuple[int, TickWork], int] = {}
    num_saved = [0] * schedule.chunks
    num_arrived = {
        (action, kind): 0 for action in (Action.FORWARD, Action.BACKWARD) for kind in set(kinds)
    }
    for (_, chunk), spans in held.items():
        saved |= (used := _assign(spans))
        num_saved[chunk] = max(num_saved[chunk], 1 + max(used.values()))
    for (_, wire), spans in read.items():
        arrived |= (used := _assign(spans))
        num_arrived[wire] = max(num_arrived[wire], 1 + max(used.values()))
    return Slots(saved, arrived, num_saved, num_arrived)


def message_chunk(sent: TickWork, read: TickWork) -> int:
    """Returns the chunk whose outputs, or output gradients, a message contains."""
    return sent.chunk if sent.action is Action.FORWARD else read.chunk


def _assign(spans: dict) -> dict:
    """Returns a slot for each span (begin, end): spans in one slot do not overlap."""
    ends: list[int] = []
    slots = {}
    for key, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        free = next((slot for slot, until in enumerate(ends) if until <= begin), len(ends))
        ends[free : free + 1] = [end]
        slots[key] = free
    return slots
