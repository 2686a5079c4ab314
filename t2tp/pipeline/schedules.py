"""Makes schedules: by registered name, or from a file.

A schedule is a subclass of `PipelineSchedule` with a method `order`: the entries
(`schedule.TickWork`) of one stage, in the order in which the stage runs them. At each tick a stage
runs its next entry if the messages for it have arrived. Otherwise the stage waits. With
`zero_bubble` it computes gradients of weights instead of waiting, if it has deferred any.

References: Y. Huang et al., "GPipe" (arXiv:1811.06965); D. Narayanan et al., "PipeDream-Flush" or
1F1B and its interleaved form (arXiv:2104.04473, section 2.2); P. Qi et al., "Zero Bubble Pipeline
Parallelism" (arXiv:2401.10241), ZB-H1.
"""

import re
from collections.abc import Sequence

from t2tp import registry
from t2tp.pipeline.schedule import Action, Schedule, ScheduleError, TickWork
from t2tp.suggestions import nearest
from t2tp.typed_files import InvalidFileError, read_text

_MAX_BYTES = 2**20  # of a schedule's file
_CELL = re.compile(r"([FBW])(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)


def make_schedule(name: str, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Returns the schedule of a training step.

    Args:
      name: a registered schedule, or the path of a `.csv` file.
      stages: number of stages.
      microbatches: number of microbatches of a step.
      chunks: number of chunks of each stage. With several, `1f1b` is the same as `interleaved`.

    Raises:
      ScheduleError: the name is unknown, or the file does not have a schedule for these numbers.
    """
    return pipeline_schedule(name).table(stages, microbatches, chunks)


def pipeline_schedule(name: str) -> "PipelineSchedule":
    """Returns the registered schedule of this name, or the schedule in a `.csv` file.

    Raises:
      ScheduleError: the name is unknown.
    """
    if name.endswith(".csv"):
        return _ScheduleFile(name)
    names = registry.list_pipeline_schedules()
    if name not in names:
        known = nearest(name, names, "schedules")
        raise ScheduleError(f"pipeline_schedule is {name!r}: {known} (or a .csv file)")
    return registry.pipeline_schedule(name)()


def searched_schedules() -> list[str]:
    """Returns the names of the schedules that a search tries."""
    return [n for n in registry.list_pipeline_schedules() if pipeline_schedule(n).is_searched]


def lowered_schedule(splits_backward: bool) -> str:
    """Returns the schedule whose program serves all schedules that split the backward pass, or not.

    A schedule is data of a stage's program. Only separate entries for the gradients of weights need
    another program.
    """
    return "zero_bubble" if splits_backward else "1f1b"


def forward_schedule(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Returns the schedule of an evaluation: forward passes only."""
    order = _forward_order(stages, microbatches, chunks)
    return _fill_table([order] * stages, microbatches, chunks, trains=False)


def _cell(text: str, where: str) -> TickWork | None:
    if not text:
        return None
    match = _CELL.fullmatch(text)
    if match is None:
        raise ScheduleError(f"{where}: {text!r} is not an entry such as F0, B3 or W3.1")
    return TickWork(Action(match[1]), int(match[2]), int(match[3] or 0))


def _forward_order(stages: int, microbatches: int, chunks: int) -> list[TickWork]:
    """Returns the order in which one group of microbatches after another runs all chunks.

    A group has as many microbatches as there are stages.
    """
    order = []
    for begin in range(0, microbatches, stages):
        group = range(begin, min(begin + stages, microbatches))
        order += [TickWork(Action.FORWARD, m, c) for c in range(chunks) for m in group]
    return order


def _backward_order(stages: int, microbatches: int, chunks: int) -> list[TickWork]:
    return [
        TickWork(Action.BACKWARD, entry.microbatch, chunks - 1 - entry.chunk)
        for entry in _forward_order(stages, microbatches, chunks)
    ]


def _fill_table(
    orders: Sequence[Sequence[TickWork]],
    microbatches: int,
    chunks: int,
    *,
    trains: bool = True,
    limit: int | None = None,
) -> Schedule:
    """Fills a table tick by tick. Each stage runs its entries in the order given by `orders`.

    With `limit`, each backward pass leaves an entry for the gradients of the weights. The stage
    runs these entries when it would wait: for a message, or because it saves the activations of
    `limit` forward passes.
    """
    rows: list[tuple[TickWork | None, ...]] = []
    done: set[tuple[int, TickWork]] = set()
    empty = Schedule(((None,) * len(orders),), microbatches, chunks, trains)
    left = [list(order) for order in orders]
    deferred: list[list[TickWork]] = [[] for _ in orders]
    alive = [0] * len(orders)

    def can_run(stage: int, entry: TickWork) -> bool:
        if entry.action is Action.FORWARD and alive[stage] == limit:
            return False
        requirement = empty.requirement(stage, entry)
        return requirement is None or requirement in done

    def choose(stage: int) -> TickWork | None:
        if left[stage] and can_run(stage, left[stage][0]):
            entry = left[stage].pop(0)
            if limit is not None:
                if entry.action is Action.FORWARD:
                    alive[stage] += 1
                else:
                    deferred[stage].append(entry._replace(action=Action.WEIGHTS))
            return entry
        if deferred[stage]:
            alive[stage] -= 1
            return deferred[stage].pop(0)
        return None

    while any(left) or any(deferred):
        row = [choose(stage) for stage in range(len(orders))]
        if not any(row):
            raise ScheduleError(f"stages wait for each other after {len(rows)} ticks")
        done |= {(stage, entry) for stage, entry in enumerate(row) if entry is not None}
        rows.append(tuple(row))
    return Schedule(tuple(rows), microbatches, chunks, trains)


class PipelineSchedule:
    """A way to order the work of the stages.

    Register a subclass with `@registry.register_pipeline_schedule`, and define `order`.

    Attributes:
      chunks: the numbers of chunks per stage for which the schedule is meant. A search tries these.
      is_searched: whether a search tries the schedule.
    """

    chunks: Sequence[int] = (1,)
    is_searched = True

    def order(self, stage: int, stages: int, microbatches: int, chunks: int) -> list[TickWork]:
        """Returns the entries of one stage in order.

        Each microbatch has a forward and a backward pass for each chunk. If there are entries for
        the gradients of weights, there is one for each microbatch and chunk, too.
        """
        raise NotImplementedError

    def table(self, stages: int, microbatches: int, chunks: int) -> Schedule:
        """Returns the table of the schedule for all stages."""
        orders = [self.order(stage, stages, microbatches, chunks) for stage in range(stages)]
        return _fill_table(orders, microbatches, chunks)

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of the weights have separate entries."""
        return self.table(2, 2, 1).splits_backward


class _ScheduleFile(PipelineSchedule):
    """A `.csv` file: a line per tick, and a column per stage with cells such as `F0` or `W3.1`.

    `F`, `B` and `W` are the forward pass, the backward pass and the gradients of the weights.
    `W3.1` is for microbatch 3 and chunk 1.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def table(self, stages: int, microbatches: int, chunks: int) -> Schedule:
        """Reads the table.

        Raises:
          ScheduleError: the file cannot be read, or its table is not a valid schedule for these
            numbers of stages, microbatches and chunks.
        """
        rows = []
        for number, line in enumerate(self._text().splitlines(), 1):
            where = f"{self._path}, line {number}"
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) != stages:
                raise ScheduleError(
                    f"{where} has {len(cells)} columns, and the pipeline {stages} stages"
                )
            rows.append(tuple(_cell(cell, where) for cell in cells))
        if not rows:
            raise ScheduleError(f"{self._path} is empty")
        schedule = Schedule(tuple(rows), microbatches, chunks)
        try:
            schedule.check()
        except ScheduleError as error:
            raise ScheduleError(f"{self._path}: {error}") from error
        return schedule

    @property
    def splits_backward(self) -> bool:
        """Whether the table has entries such as `W0`."""
        return Action.WEIGHTS.value in self._text()

    def _text(self) -> str:
        try:
            return read_text(self._path, _MAX_BYTES)
        except (OSError, InvalidFileError) as error:
            raise ScheduleError(
                f"pipeline_schedule={self._path} cannot be read: {error}"
            ) from error


@registry.register_pipeline_schedule
class Gpipe(PipelineSchedule):
    """All forward passes, then all backward passes."""

    is_searched = False  # It takes as long as `1f1b` and saves more activations.

    def order(self, stage: int, stages: int, microbatches: int, chunks: int) -> list[TickWork]:
        """Returns the same order for every stage."""
        forward = _forward_order(stages, microbatches, chunks)
        return forward + _backward_order(stages, microbatches, chunks)


@registry.register_pipeline_schedule("1f1b")
class OneForwardOneBackward(PipelineSchedule):
    """Forward and backward passes in turn, so that few microbatches are in memory."""

    def order(self, stage: int, stages: int, microbatches: int, chunks: int) -> list[TickWork]:
        """Returns forward passes, then forward and backward in turn, then backward passes."""
        groups = -(-microbatches // stages)
        # Orders full groups; the last line drops microbatches that do not exist.
        forward = _forward_order(stages, groups * stages, chunks)
        backward = _backward_order(stages, groups * stages, chunks)
        ahead = stages - 1 - stage
        if chunks > 1:
            ahead = 2 * ahead + (chunks - 1) * stages
        ahead = min(ahead, len(forward))
        order = forward[:ahead]
        for i, entry in enumerate(forward[ahead:]):
            order += [entry, backward[i]]
        order += backward[len(forward) - ahead :]
        return [entry for entry in order if entry.microbatch < microbatches]


@registry.register_pipeline_schedule
class Interleaved(OneForwardOneBackward):
    """`1f1b` with several chunks of layers on each stage, so that stages wait less."""

    chunks = range(2, 9)


@registry.register_pipeline_schedule
class ZeroBubble(OneForwardOneBackward):
    """ZB-H1: `1f1b`, with gradients of weights in the ticks that would be idle.

    No stage saves more activations than the first stage of `1f1b`.
    """

    def table(self, stages: int, microbatches: int, chunks: int) -> Schedule:
        """Returns the table, whose order depends on when messages arrive."""
        orders = [self.order(stage, stages, microbatches, chunks) for stage in range(stages)]
        limit = _fill_table(orders, microbatches, chunks).alive()[0]
        return _fill_table(orders, microbatches, chunks, limit=limit)
