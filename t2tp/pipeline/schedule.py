"""Schedules of a pipeline: tables with one entry for each stage and tick.

A stage's work on a microbatch is a forward pass (F) and a backward pass (B). A separate entry (W)
may compute the gradients of the weights later. If stages have several chunks of layers, the
microbatch goes through chunk 0 of all stages, then through chunk 1 of all stages, and so on. A
message arrives at the end of a tick and can be read in any later tick.
"""

import enum
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from t2tp.mesh.layout_text import LayoutError


class Action(enum.Enum):
    """A stage's action in a tick; the values are the letters in `pipeline_schedule` files."""

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHTS = "W"


class TickWork(NamedTuple):
    """A stage's work in a tick: an action on a microbatch by one chunk of the stage's layers."""

    action: Action
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        chunk = f".{self.chunk}" if self.chunk else ""
        return f"{self.action.value}{self.microbatch}{chunk}"


class ScheduleError(LayoutError):
    """An invalid schedule table."""


@dataclass(frozen=True)
class Schedule:
    """A table of entries: a row for each tick, and a column for each stage; None: idle."""

    table: tuple[tuple[TickWork | None, ...], ...]
    microbatches: int
    chunks: int = 1
    trains: bool = True

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.table[0])

    @property
    def ticks(self) -> int:
        """Number of ticks."""
        return len(self.table)

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of the weights have separate entries."""
        return any(e.action is Action.WEIGHTS for _, _, e in self.entries())

    def entries(self) -> Iterator[tuple[int, int, TickWork]]:
        """Returns (tick, stage, entry) of all entries, tick by tick."""
        for tick, row in enumerate(self.table):
            for stage, entry in enumerate(row):
                if entry is not None:
                    yield tick, stage, entry

    def ticks_of(self) -> dict[tuple[int, TickWork], int]:
        """Returns the tick of each (stage, entry)."""
        return {(stage, entry): tick for tick, stage, entry in self.entries()}

    def requirement(self, stage: int, entry: TickWork) -> tuple[int, TickWork] | None:
        """Returns the (stage, entry) from which an entry receives its input; None if there is none.

        Within a stage and chunk, the order must also be F, B, W. `check` checks this order.
        """
        if entry.action is Action.WEIGHTS:
            return None
        # A forward pass visits all stages with chunk 0, then all stages with chunk 1, and so on.
        place = entry.chunk * self.stages + stage
        place += -1 if entry.action is Action.FORWARD else 1
        if not 0 <= place < self.stages * self.chunks:
            return None
        chunk, sender = divmod(place, self.stages)
        return sender, entry._replace(chunk=chunk)

    def check(self) -> None:
        """Checks that the table trains, or evaluates, each microbatch once.

        Raises:
          ScheduleError: an entry is missing, repeated or unknown, or an entry that it requires is
            not in an earlier tick.
        """
        at: dict[tuple[int, TickWork], int] = {}
        for tick, stage, entry in self.entries():
            what = f"stage {stage} has {entry} at tick {tick}"
            if not (0 <= entry.microbatch < self.microbatches and 0 <= entry.chunk < self.chunks):
                raise ScheduleError(
                    f"{what}, and there are {self.microbatches} microbatches and {self.chunks}"
                    " chunks, counted from 0"
                )
            if (stage, entry) in at:
                raise ScheduleError(f"{what}, and had it at tick {at[stage, entry]}")
            needed = [self.requirement(stage, entry)]
            if entry.action is Action.BACKWARD:
                needed.append((stage, entry._replace(action=Action.FORWARD)))
            if entry.action is Action.WEIGHTS:
                needed.append((stage, entry._replace(action=Action.BACKWARD)))
            for requirement in filter(None, needed):
                if requirement not in at:
                    raise ScheduleError(
                        f"{what}, before {requirement[1]} of stage {requirement[0]}, which it needs"
                    )
                if at[requirement] == tick:
                    raise ScheduleError(
                        f"{what}, the tick at which another stage computes its input"
                    )
            at[stage, entry] = tick
        actions = [Action.FORWARD, *([Action.BACKWARD] if self.trains else [])]
        actions += [Action.WEIGHTS] if self.splits_backward else []
        expected = itertools.product(
            range(self.stages), actions, range(self.microbatches), range(self.chunks)
        )
        for stage, action, microbatch, chunk in expected:
            entry = TickWork(action, microbatch, chunk)
            if (stage, entry) not in at:
                raise ScheduleError(f"stage {stage} never has {entry}")

    def alive(self) -> list[int]:
        """Returns, per stage, the max number of microbatches whose activations are in memory.

        A microbatch is counted once for each chunk.
        """
        ones = [[1] * self.chunks] * self.stages
        return [int(count) for count in self.max_kept(ones)]

    def max_kept(self, sizes: Sequence[Sequence[float]]) -> list[float]:
        """Returns the max size of the activations that each stage saves at the same time.

        `sizes` has the size that a forward pass saves, by stage and chunk.
        """
        last = Action.WEIGHTS if self.splits_backward else Action.BACKWARD
        most, now = [0.0] * self.stages, [0.0] * self.stages
        for _, stage, entry in self.entries():
            if entry.action is Action.FORWARD:
                now[stage] += sizes[stage][entry.chunk]
                most[stage] = max(most[stage], now[stage])
            if entry.action is last:
                now[stage] -= sizes[stage][entry.chunk]
        return most

    def simulate(self, seconds: Callable[[int, TickWork], float]) -> tuple[float, list[float]]:
        """Runs the table; returns when the last entry ends, and how long each stage works.

        A stage starts an entry as soon as the entry's inputs have arrived.
        """
        ends: dict[tuple[int, TickWork], float] = {}
        free, busy = [0.0] * self.stages, [0.0] * self.stages
        for _, stage, entry in self.entries():
            taken = seconds(stage, entry)
            needed = self.requirement(stage, entry)
            start = free[stage] if needed is None else max(free[stage], ends[needed])
            ends[stage, entry] = free[stage] = start + taken
            busy[stage] += taken
        return max(free), busy

    def bubble(self) -> float:
        """Returns the idle fraction of all stages' time, from 0 to 1.

        Assumes that a forward pass, the gradients w.r.t. inputs and the gradients of the weights
        take the same time.
        """
        backward = 1.0 if self.splits_backward else 2.0
        end, busy = self.simulate(
            lambda _, entry: backward if entry.action is Action.BACKWARD else 1.0
        )
        return 1.0 - sum(busy) / (end * self.stages)

    def __str__(self) -> str:
        """The table as in a file: a line for each tick, a column for each stage."""
        return "\n".join(",".join("" if e is None else str(e) for e in row) for row in self.table)
