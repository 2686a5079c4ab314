"""Makes schedules: by name, or from a file.

Each stage runs its entries (`schedule.Entry`) in a given order. At each tick a stage runs its next
entry if the messages for it have arrived. Otherwise the stage waits. With `zero_bubble` it computes
gradients of weights instead of waiting, if it has deferred any.

References: Y. Huang et al., "GPipe" (arXiv:1811.06965); D. Narayanan et al., "PipeDream-Flush" or
1F1B and its interleaved form (arXiv:2104.04473, section 2.2); P. Qi et al., "Zero Bubble Pipeline
Parallelism" (arXiv:2401.10241), ZB-H1.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from t2tp.choices import PIPELINE_SCHEDULES
from t2tp.pipeline.schedule import Action, Entry, Schedule, ScheduleError
from t2tp.suggestions import nearest

_CELL = re.compile(r"^([FBW])(\d+)(?:\.(\d+))?$")


def make_schedule(name: str, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Returns the schedule of a training step.

    Args:
      name: `gpipe`, `1f1b`, `interleaved`, `zero_bubble`, or the path of a `.csv` file.
      stages: number of stages.
      microbatches: number of microbatches of a step.
      chunks: number of chunks of each stage. With several, `1f1b` is the same as `interleaved`.

    Raises:
      ScheduleError: the name is unknown, or the file does not have a schedule for these numbers.
    """
    if name.endswith(".csv"):
        return read_schedule(name, stages, microbatches, chunks)
    if name not in PIPELINE_SCHEDULES:
        known = nearest(name, PIPELINE_SCHEDULES, "schedules")
        raise ScheduleError(f"pipeline_schedule is {name!r}: {known} (or a .csv file)")
    if name == "zero_bubble":
        return _zero_bubble(stages, microbatches, chunks)
    order = _all_forward_first if name == "gpipe" else _one_forward_one_backward
    orders = [order(stage, stages, microbatches, chunks) for stage in range(stages)]
    return _in_order(orders, microbatches, chunks)


def forward_schedule(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Returns the schedule of an evaluation: forward passes only."""
    order = _forward_order(stages, microbatches, chunks)
    return _in_order([order] * stages, microbatches, chunks, trains=False)


def read_schedule(path: str, stages: int, microbatches: int, chunks: int) -> Schedule:
    """Reads a table with a line per tick and a column per stage; its cells are like `F0` or `W3.1`.

    `F`, `B` and `W` are the forward pass, the backward pass and the gradients of the weights.
    `W3.1` is for microbatch 3 and chunk 1.

    Raises:
      ScheduleError: the file cannot be read, or its table is not a valid schedule for these numbers
        of stages, microbatches and chunks.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ScheduleError(f"pipeline_schedule={path} cannot be read: {error}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != stages:
            raise ScheduleError(
                f"{path}, line {number} has {len(cells)} columns, and the pipeline {stages} stages"
            )
        rows.append(tuple(_cell(cell, f"{path}, line {number}") for cell in cells))
    if not rows:
        raise ScheduleError(f"{path} is empty")
    schedule = Schedule(tuple(rows), microbatches, chunks)
    try:
        schedule.check()
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from error
    return schedule


def _cell(text: str, where: str) -> Entry | None:
    if not text:
        return None
    match = _CELL.match(text)
    if match is None:
        raise ScheduleError(f"{where}: {text!r} is not an entry such as F0, B3 or W3.1")
    return Entry(Action(match[1]), int(match[2]), int(match[3] or 0))


def _forward_order(stages: int, microbatches: int, chunks: int) -> list[Entry]:
    """Returns the order in which one group of microbatches after another runs all chunks.

    A group has as many microbatches as there are stages.
    """
    order = []
    for begin in range(0, microbatches, stages):
        group = range(begin, min(begin + stages, microbatches))
        order += [Entry(Action.FORWARD, m, c) for c in range(chunks) for m in group]
    return order


def _backward_order(stages: int, microbatches: int, chunks: int) -> list[Entry]:
    return [
        Entry(Action.BACKWARD, entry.microbatch, chunks - 1 - entry.chunk)
        for entry in _forward_order(stages, microbatches, chunks)
    ]


def _all_forward_first(stage: int, stages: int, microbatches: int, chunks: int) -> list[Entry]:
    del stage
    forward = _forward_order(stages, microbatches, chunks)
    return forward + _backward_order(stages, microbatches, chunks)


def _one_forward_one_backward(
    stage: int, stages: int, microbatches: int, chunks: int
) -> list[Entry]:
    """Returns a stage's order: forward passes, then forward and backward in turn, then backward."""
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


def _in_order(
    orders: Sequence[Sequence[Entry]], microbatches: int, chunks: int, trains: bool = True
) -> Schedule:
    """Fills a table in which each stage runs its entries in a fixed order."""
    left = [list(order) for order in orders]

    def first(stage: int, is_ready: Callable[[Entry], bool]) -> Entry | None:
        if left[stage] and is_ready(left[stage][0]):
            return left[stage].pop(0)
        return None

    return _fill_table(first, len(orders), microbatches, chunks, lambda: any(left), trains)


def _zero_bubble(stages: int, microbatches: int, chunks: int) -> Schedule:
    """ZB-H1: 1F1B, with gradients of weights in the ticks that would be idle.

    No stage saves more activations than the first stage of 1F1B.
    """
    orders = [
        _one_forward_one_backward(stage, stages, microbatches, chunks) for stage in range(stages)
    ]
    limit = _in_order(orders, microbatches, chunks).alive()[0]
    left = [list(order) for order in orders]
    weights: list[list[Entry]] = [[] for _ in range(stages)]
    alive = [0] * stages

    def choose(stage: int, is_ready: Callable[[Entry], bool]) -> Entry | None:
        following = left[stage]
        is_full = following and following[0].action is Action.FORWARD and alive[stage] >= limit
        if following and not is_full and is_ready(following[0]):
            entry = following.pop(0)
            if entry.action is Action.FORWARD:
                alive[stage] += 1
            else:
                weights[stage].append(entry._replace(action=Action.WEIGHTS))
            return entry
        if weights[stage]:
            alive[stage] -= 1
            return weights[stage].pop(0)
        return None

    def has_entries_left() -> bool:
        return any(left) or any(weights)

    return _fill_table(choose, stages, microbatches, chunks, has_entries_left)


def _fill_table(
    choose: Callable[[int, Callable[[Entry], bool]], Entry | None],
    stages: int,
    microbatches: int,
    chunks: int,
    has_entries_left: Callable[[], bool],
    trains: bool = True,
) -> Schedule:
    """Fills a table tick by tick.

    `choose` is called with a stage and a test whether an entry can run. It returns the entry that
    the stage runs in this tick, or None.
    """
    rows: list[tuple[Entry | None, ...]] = []
    done: set[tuple[int, Entry]] = set()
    empty = Schedule(((None,) * stages,), microbatches, chunks, trains)

    def is_ready(stage: int, entry: Entry) -> bool:
        requirement = empty.requirement(stage, entry)
        return requirement is None or requirement in done

    while has_entries_left():
        row = [choose(stage, partial(is_ready, stage)) for stage in range(stages)]
        if not any(row):
            raise ScheduleError(f"stages wait for each other after {len(rows)} ticks")
        done |= {(stage, entry) for stage, entry in enumerate(row) if entry is not None}
        rows.append(tuple(row))
    return Schedule(tuple(rows), microbatches, chunks, trains)
