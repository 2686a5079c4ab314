"""The loops over the batches of a training and of an evaluation."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from absl import logging

from t2tp.processes.cluster import Cluster
from t2tp.program.program import PlacedFeatures, Program
from t2tp.trainer.hooks.hook import Hook, Training
from t2tp.trainer.processes.interrupt import InterruptHandler


def train_loop(
    placed: Iterable[tuple[Program, PlacedFeatures]],
    training: Training,
    hooks: Sequence[Hook],
    interrupt: InterruptHandler,
    done: Callable[[int], None],
) -> None:
    """Trains a step per batch, until a signal arrives or a hook stops the training.

    `placed` yields the program and the placed batch of each step. `done` is called after each step
    with the number of steps done, before the hooks' `after_step`.
    """
    for hook in hooks:
        hook.begin(training)
    for program, features in training.clock.counted("data", placed):
        for hook in hooks:
            hook.before_step(training)
        outputs = program(features, step=training.steps_done)
        training.steps_done += 1
        done(training.steps_done)
        for hook in hooks:
            hook.after_step(training, outputs)
        if interrupt.stops_after(training.steps_done):
            break
        if training.stop_reason:
            logging.info("stopping after step %d: %s", training.steps_done, training.stop_reason)
            break
    for hook in hooks:
        hook.end(training)


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
    reports = [
        json.loads(each) for each in cluster.process_allgather("sums", json.dumps([sums, of_host]))
    ]
    # Program outputs are global sums in every process already; counts are not.
    total = defaultdict(float, reports[0][0])
    for _, counts in reports:
        for name, number in counts.items():
            total[name] += number
    return dict(total)
