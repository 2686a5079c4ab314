"""Simulates the table of a pipeline schedule with the seconds of its entries.

Once the pipeline is full, each further group of `stages` microbatches adds the same seconds. So a
long table is extrapolated from two short tables.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from t2tp.pipeline.schedule import Action, Schedule, TickWork
from t2tp.pipeline.schedules import make_schedule

# The longer of the two short tables has this number of full groups, and then the last group, which
# may have fewer microbatches.
_GROUPS = 3

# (action, chunk) -> seconds, of one stage.
EntrySeconds = Mapping[tuple[Action, int], float]


@dataclass(frozen=True)
class Timing:
    """The duration of a schedule.

    Attributes:
      seconds: seconds from the beginning of the first entry to the end of the last.
      busy: seconds of work of each stage, messages included.
      sends: number of messages that each stage sends, by action and by chunk (see `_crossed`).
    """

    seconds: float
    busy: tuple[float, ...]
    sends: tuple[Mapping[tuple[Action, int], int], ...]

    @property
    def idle_share(self) -> float:
        """Idle fraction of all stages."""
        return 1.0 - sum(self.busy) / (len(self.busy) * self.seconds)


@dataclass(frozen=True)
class Table:
    """A schedule, whose table may be too long to construct.

    Attributes:
      name: name of the schedule, or path of its file.
      chunks: number of chunks of each stage.
    """

    name: str
    stages: int
    microbatches: int
    chunks: int = 1

    @functools.cached_property
    def short(self) -> tuple[Schedule, Schedule, int]:
        """Two short tables, and the number of groups that the first table lacks.

        The full table has these additional groups. If the full table is short or from a file, both
        tables are the full table and the number is 0.

        Raises:
          ScheduleError: there is no such table.
        """
        left_out = (self.microbatches - 1) // self.stages - _GROUPS
        # A file has the table for one number of microbatches only.
        if left_out <= 0 or self.name.endswith(".csv"):
            table = make_schedule(self.name, self.stages, self.microbatches, self.chunks)
            return table, table, 0
        count = self.microbatches - left_out * self.stages
        longer, shorter = (
            make_schedule(self.name, self.stages, each, self.chunks)
            for each in (count, count - self.stages)
        )
        return longer, shorter, left_out

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of the weights have separate entries."""
        return self.short[0].splits_backward

    def run(self, seconds: Sequence[EntrySeconds], message: Sequence[float]) -> Timing:
        """Runs the table. Each stage starts an entry as soon as its inputs have arrived.

        Args:
          seconds: seconds of each stage's entries.
          message: for each chunk, seconds of a message at the end of the chunk. Sender and receiver
            wait for it.
        """
        longer, shorter, left_out = self.short
        whole = _run(longer, seconds, message)
        part = _run(shorter, seconds, message) if left_out else whole
        return Timing(
            self._grown(whole.seconds, part.seconds),
            tuple(map(self._grown, whole.busy, part.busy)),
            tuple(
                {key: round(self._grown(long[key], short[key])) for key in long}
                for long, short in zip(whole.sends, part.sends, strict=True)
            ),
        )

    def _grown(self, long: float, short: float) -> float:
        return long + self.short[2] * (long - short)

    def kept(self, sizes: Sequence[Sequence[float]]) -> list[float]:
        """Returns the max bytes that each stage saves at once for its backward passes.

        `sizes` has the bytes that each stage saves per microbatch, by chunk.
        """
        longer, shorter, _ = self.short
        return list(map(self._grown, longer.max_kept(sizes), shorter.max_kept(sizes)))


def _run(schedule: Schedule, seconds: Sequence[EntrySeconds], message: Sequence[float]) -> Timing:
    sends: list[Counter[tuple[Action, int]]] = [Counter() for _ in range(schedule.stages)]

    # `simulate` calls it once for each entry, so it also counts the messages.
    def seconds_of(stage: int, entry: TickWork) -> float:
        work = seconds[stage][entry.action, entry.chunk]
        crossed = _crossed(schedule, stage, entry)
        if crossed is None:
            return work
        sends[stage][entry.action, crossed] += 1
        return work + message[crossed]

    end, busy = schedule.simulate(seconds_of)
    return Timing(end, tuple(busy), tuple(dict(each) for each in sends))


def _crossed(schedule: Schedule, stage: int, entry: TickWork) -> int | None:
    """Returns the chunk whose output an entry sends to another stage; None: it sends no message.

    In the backward pass, the message has the output's gradients, in the opposite direction.
    """
    if entry.action is Action.FORWARD:
        is_last = (stage + 1, entry.chunk + 1) == (schedule.stages, schedule.chunks)
        return None if is_last else entry.chunk
    # The first stage's chunk got its input from the last stage's previous chunk.
    if entry.action is Action.BACKWARD and (stage or entry.chunk):
        return entry.chunk if stage else entry.chunk - 1
    return None
