"""The loops over batches: those that are trained on, and those that are counted in."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from absl import logging

from t2tp.mesh.cluster import Cluster
from t2tp.mesh.program import Placed, Program
from t2tp.trainer.hooks import Hook, Training
from t2tp.trainer.interrupt import InterruptHandler


def train_on(
    placed: Iterable[tuple[Program, Placed]],
    training: Training,
    hooks: Sequence[Hook],
    interrupt: InterruptHandler,
    done: Callable[[int], None],
) -> None:
    """Does a step for each batch, until somebody interrupts or a hook has a reason to stop.

    Args:
      placed: the program and the batch of each step.
      training: counts the steps.
      hooks: are called around them.
      interrupt: says whether a signal came.
      done: is told the number of steps done, before the hooks are.
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


def add_up(
    prepared: Iterable[tuple[tuple[Program, Placed], Mapping[str, float]]],
    step: int,
    cluster: Cluster,
    counted: Callable[[], None],
) -> dict[str, float]:
    """Adds up what programs count in batches, and what hosts do.

    Args:
      prepared: the program and the batch, and what this process's host counts in it.
      step: the number of training steps behind the variables.
      cluster: the processes, each of which counts in some of the batches.
      counted: is called after each batch.

    Returns:
      the sums, by name, the same in all processes.
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
    said = [json.loads(each) for each in cluster.exchange("sums", json.dumps([sums, of_host]))]
    total = defaultdict(float, said[0][0])  # The model's are whole in each process.
    for _, counts in said:
        for name, number in counts.items():
            total[name] += number
    return dict(total)
