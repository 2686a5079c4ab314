"""The interface of hooks: called before and after the steps of a training.

To add a hook, define its class and register a function that makes it, in `--t2t_usr_dir`:

    class LossLimit(Hook):
        def after_step(self, training, outputs):
            if training.steps_done % 100 == 0 and outputs["loss"] > 20:
                training.stop_reason = "the loss is above 20"

    @registry.register_hook("loss_limit")
    def make(spec):  # the `RunSpec`: hparams, problem, directory, ...
        return LossLimit()

`t2tp_trainer --t2t_usr_dir=... --hooks=loss_limit` calls the hook in every process, after t2tp's
own hooks and before a step is saved.
"""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class TrainingClock:
    """A stopwatch that stops while checkpoints are written and evaluations run.

    The clock also adds up the seconds of each purpose, such as "data" or "evaluation".
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Starts the watch; `now` returns seconds."""
        self._now = now
        self._started = now()
        self._stopped = 0.0
        self._parts: defaultdict[str, float] = defaultdict(float)

    def seconds(self) -> float:
        """Returns the seconds since the start, excluding the time while the watch was stopped."""
        return self._now() - self._started - self._stopped

    def parts(self) -> dict[str, float]:
        """Returns the seconds by purpose, as named in `stopped` and `counted`."""
        return dict(self._parts)

    @contextlib.contextmanager
    def stopped(self, what: str) -> Iterator[None]:
        """Stops the watch inside the context; `what` is the purpose of this time."""
        begin = self._now()
        try:
            yield
        finally:
            seconds = self._now() - begin
            self._stopped += seconds
            self._parts[what] += seconds

    def counted(self, what: str, items: Iterable[T]) -> Iterator[T]:
        """Yields the items and records the time spent waiting for them; the watch runs on."""
        iterator = iter(items)
        while True:
            begin = self._now()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self._parts[what] += self._now() - begin
            yield item


@dataclass
class Training:
    """A training in progress, as its hooks see it.

    Attributes:
      steps_done: steps done since the beginning of the run.
      max_steps: the value of `steps_done` at which the training ends.
      clock: measures the time spent training; a slow hook stops the clock while it works.
      stop_reason: set by a hook to end the training after this launch. With several processes, the
        hook must set it in all processes after the same step.
      confirm: raises an error if one of the steps until now is unusable, for example if its loss is
        NaN. The trainer calls it before it saves the variables.
      confirm_saving: raises an error if the variables must not be saved. All processes call it
        before saving.
      rest_of_loop: number of the following steps that have run in the same launch as this step
        (`--iterations_per_loop`). The variables already contain their updates.
    """

    steps_done: int
    max_steps: int
    clock: TrainingClock = field(default_factory=TrainingClock)
    stop_reason: str = ""
    confirm: Callable[[], None] = lambda: None
    confirm_saving: Callable[[], None] = lambda: None
    rest_of_loop: int = 0

    @property
    def steps_launched(self) -> int:
        """The number of steps that led to the variables' values."""
        return self.steps_done + self.rest_of_loop


class Hook:
    """Base class of hooks; a subclass overrides some methods.

    The `outputs` of `after_step` have the step's `loss`, `metrics/...` and `scalars/...`. Reading a
    value waits for the devices, so a hook should not read values at every step.

    A launch may run several steps (`--iterations_per_loop`). The hook still sees each step, but the
    variables have the values after the last step of the launch. A hook that uses the variables
    overrides `ends_loop`.
    """

    def ends_loop(self, step: int) -> bool:
        """Whether a launch must end after this step, because `after_step` uses the variables.

        The answer must depend on the number of the step only.
        """
        return False

    def begin(self, training: Training) -> None:
        """Called once before the first step."""

    def before_step(self, training: Training) -> None:
        """Called before each step."""

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Called after each step; `training.steps_done` includes this step."""

    def end(self, training: Training) -> None:
        """Called once after the last step, even if training is interrupted; not after an error."""


@dataclass(eq=False)
class PeriodicHook(Hook):
    """Uses the variables after every N steps; a subclass defines `act`.

    Attributes:
      every: the number of steps from one `act` to the next.
    """

    every: int

    def ends_loop(self, step: int) -> bool:
        """Whether `act` is due after this step."""
        return step % self.every == 0

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Calls `act` if it is due."""
        if self.ends_loop(training.steps_done):
            wait_for(training, outputs)
            self.act(training)

    def act(self, training: Training) -> None:
        """Called when due, after the devices have finished the step, which is finite."""
        raise NotImplementedError


@dataclass(eq=False)
class EvaluationHook(PeriodicHook):
    """Evaluates every N steps, except after the last step, which the caller evaluates.

    The hook runs before the hook that saves, so a step is evaluated before its checkpoint is saved.

    Attributes:
      evaluate: evaluates the current variables.
      plateau: returns why training should stop after the evaluation; "" to continue.
    """

    evaluate: Callable[[], object]
    plateau: Callable[[], str]

    def act(self, training: Training) -> None:
        """Evaluates, unless this is the last step."""
        if training.steps_done < training.max_steps:
            with training.clock.stopped("evaluation"):
                self.evaluate()
                training.stop_reason = self.plateau()


def wait_for(training: Training, outputs: Mapping[str, np.ndarray]) -> None:
    """Waits until the devices have finished the step, so that the clock includes it.

    Raises NonfiniteStepError if the step is not finite.
    """
    float(outputs["loss"])
    training.confirm()
