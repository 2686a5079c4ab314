"""Where a stage keeps what arrives, and what its backward passes need.

Memory is reserved in slots. A slot is reused once its contents have been read for the last time, so
there are as many slots as tensors of the schedule are alive at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from t2tp.pipeline.schedule import Action, Entry, Schedule


@dataclass(frozen=True)
class Slots:
    """The slots of a schedule; all numbers are the same on each stage, or the largest.

    Attributes:
      saved: by (stage, microbatch, chunk), the slot of what a forward pass keeps for the backward
        passes.
      arrived: by (stage, entry), the slot of what another stage sends for this entry; of entries
        that read what arrives.
      num_saved: number of the slots of each chunk.
      num_arrived: number of the slots by (action, kind of message).
    """

    saved: dict[tuple[int, int, int], int]
    arrived: dict[tuple[int, Entry], int]
    num_saved: list[int]
    num_arrived: dict[tuple[Action, int], int]


def assign_slots(schedule: Schedule, kinds: Sequence[int]) -> Slots:
    """Assigns slots.

    Args:
      schedule: the table.
      kinds: for each chunk, the kind of messages that its layers send: those of different shapes
        have slots of their own.
    """
    at = schedule.ticks_of()
    last = Action.WEIGHTS if schedule.splits_backward else Action.BACKWARD
    saved: dict[tuple[int, int, int], int] = {}
    arrived: dict[tuple[int, Entry], int] = {}
    num_saved = [0] * schedule.chunks
    num_arrived = {
        (action, kind): 0 for action in (Action.FORWARD, Action.BACKWARD) for kind in set(kinds)
    }
    for stage in range(schedule.stages):
        for chunk in range(schedule.chunks if schedule.trains else 0):
            spans = {}
            for microbatch in range(schedule.microbatches):
                entry = Entry(Action.FORWARD, microbatch, chunk)
                end = at[stage, entry._replace(action=last)]
                spans[stage, microbatch, chunk] = (at[stage, entry], end)
            saved |= (taken := _assign(spans))
            num_saved[chunk] = max(num_saved[chunk], 1 + max(taken.values()))
        for action, kind in num_arrived:
            read = {}
            for (place, entry), tick in at.items():
                sender = schedule.requirement(place, entry)
                if place != stage or entry.action is not action or sender is None:
                    continue
                if kinds[message_chunk(sender[1], entry)] == kind:
                    read[stage, entry] = (at[sender], tick)
            if read:
                arrived |= (used := _assign(read))
                count = num_arrived[action, kind]
                num_arrived[action, kind] = max(count, 1 + max(used.values()))
    return Slots(saved, arrived, num_saved, num_arrived)


def message_chunk(sent: Entry, read: Entry) -> int:
    """Returns the chunk after whose layers a message crosses the boundary.

    Gradients cross the same boundary in the other direction.
    """
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
