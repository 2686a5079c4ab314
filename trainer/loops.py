"""The loops over the batches of a training and of an evaluation.

A training launches up to `iterations_per_loop` steps at once. The steps of a launch are fixed by
their numbers: a launch ends at each multiple of `iterations_per_loop`, and where a hook needs the
variables. So a resumed training has the same launches as an undisturbed one.
"""

import contextlib
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from absl import logging

from t2tp.processes.cluster import Cluster
from t2tp.program.outputs import Outputs
from t2tp.program.program import PlacedFeatures, Program
from t2tp.trainer.hooks.hook import Hook, Training
from t2tp.trainer.processes.interrupt import InterruptHandler

T = TypeVar("T")


def train_loop(
    placed: Iterable[tuple[Program, PlacedFeatures]],
    training: Training,
    hooks: Sequence[Hook],
    interrupt: InterruptHandler,
    done: Callable[[int], None],
    size: int = 1,
) -> None:
    """Trains a step per batch, until a signal arrives or a hook stops the training.

    A launch that has begun is finished first.

    Args:
      placed: yields the program and the placed batch of each step.
      training: the training's state, which the loop updates.
      hooks: called around each step. If a launch has several steps, the hooks of its first step
        are called before it, and then the hooks of all its steps in order.
      interrupt: says whether a signal has arrived.
      done: called after each launch with the number of steps that led to the variables' values.
      size: the largest number of steps of a launch.
    """

    def ends_loop(step: int) -> bool:
        return step % size == 0 or any(hook.ends_loop(step) for hook in hooks)

    for hook in hooks:
        hook.begin(training)
    counted = training.clock.counted("data", placed)
    for program, batches in in_loops(counted, training.steps_done, ends_loop):
        outputs: list[Outputs] = []
        for i in range(len(batches)):
            for hook in hooks:
                hook.before_step(training)
            if not outputs:
                outputs = program.loop(batches, training.steps_done, size)
                done(training.steps_done + len(batches))
            training.steps_done += 1
            training.rest_of_loop = len(batches) - i - 1
            for hook in hooks:
                hook.after_step(training, outputs[i])
        if interrupt.stops_after(training.steps_done):
            break
        if training.stop_reason:
            logging.info("stopping after step %d: %s", training.steps_done, training.stop_reason)
            break
    for hook in hooks:
        hook.end(training)


def in_loops(
    placed: Iterable[tuple[Program, PlacedFeatures]], step: int, ends_loop: Callable[[int], bool]
) -> Iterator[tuple[Program, list[PlacedFeatures]]]:
    """Groups the batches of consecutive steps, each group for one launch of its program.

    A launch ends after the steps for which `ends_loop` is true, and before a batch of another
    program. `step` steps are done before the first batch.
    """
    launch: tuple[Program, list[PlacedFeatures]] | None = None
    for program, features in placed:
        if launch is not None and launch[0] is not program:
            yield launch
            launch = None
        launch = launch or (program, [])
        launch[1].append(features)
        step += 1
        if ends_loop(step):
            yield launch
            launch = None
    if launch is not None:
        yield launch


def sum_metrics(
    prepared: Iterable[tuple[tuple[Program, PlacedFeatures], Mapping[str, float]]],
    step: int,
    cluster: Cluster,
    counted: Callable[[], None],
) -> dict[str, float]:
    """Sums the programs' outputs, and the counts computed in Python, over all batches.

    Args:
      prepared: program, placed batch, and this process's counts for the batch (empty if another
        process counts the batch).
      step: the training step of the variables.
      cluster: the processes whose counts are summed.
      counted: called after each batch.

    Returns:
      The sums by name, the same in all processes.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    of_host: defaultdict[str, float] = defaultdict(float)
    for (program, placed), counts in prepared:
        outputs = program(placed, step=step)
        counted()
        for name in outputs:
            sums[name.removeprefix("metrics/")] += float(outputs[name])
        for name, number in counts.items():
            of_host[name] += number
    reports = cluster.process_allgather("sums", [sums, of_host])
    # Program outputs are global sums in every process already; counts are not.
    total = defaultdict(float, reports[0][0])
    for _, counts in reports:
        for name, number in counts.items():
            total[name] += number
    return dict(total)


@contextlib.contextmanager
def prefetched(make: Callable[[int], T], steps: range, ahead: int = 3) -> Iterator[Iterator[T]]:
    """Yields an iterator over `make(step)`; a background thread computes the values in order.

    ```python
    with prefetched(lambda step: program.place(stream[step]), range(100)) as placed:
        for step, features in enumerate(placed):
            program(features, step)
    ```

    If `make` raises an exception, the iterator raises it at the same step.

    Args:
      make: step -> its inputs; called in one background thread.
      steps: the steps, in order.
      ahead: max number of inputs to compute before they are needed (each occupies device memory).
    """
    pool = ThreadPoolExecutor(1, "prefetch")
    rest = iter(steps)
    pending = deque(pool.submit(make, step) for step in itertools.islice(rest, ahead))

    def results() -> Iterator[T]:
        while pending:
            item = pending.popleft().result()
            pending.extend(pool.submit(make, step) for step in itertools.islice(rest, 1))
            yield item

    try:
        yield results()
    finally:
        pool.shutdown(cancel_futures=True)
