"""`TrialSearch`: trains the points of a study, several at a time, until all are done."""

import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from t2tp.best_metric import BestMetric
from t2tp.trainer.errors import Interrupted, as_usage_error
from t2tp.trainer.processes import children
from t2tp.trainer.run_dir.lock_file import is_locked
from t2tp.trainer.search.ledger import Claim, Ledger, LostClaimError
from t2tp.trainer.search.trial_run import INTERRUPTED, Devices, TrialRun

# After this number of failures without a success, the flags of all trials are probably wrong, and
# the search ends.
_FAILURES = 3
_POLL_SECONDS = 0.2

Command = Callable[[Claim, Path], Sequence[str]]


@dataclass(eq=False)
class TrialSearch:
    """Runs trials of a study, which other processes may share.

    Attributes:
      ledger: the points of the study.
      command: returns the command that trains a claimed trial in a directory.
      directory: directory of the search.
      objectives: metrics to report to Optuna.
      devices: devices of each trial that runs at the same time.
      prunes_before: with one objective, the pruner may stop a trial at an evaluation before this
        step.
    """

    ledger: Ledger
    command: Command
    directory: Path
    objectives: Sequence[BestMetric]
    devices: Sequence[Devices]
    prunes_before: int
    _runs: list[TrialRun] = field(default_factory=list, init=False)
    _processes: list[subprocess.Popen] = field(default_factory=list, init=False)
    _signals: list[int] = field(default_factory=list, init=False)
    _failed: int = field(default=0, init=False)
    _exit_code: int = field(default=0, init=False)
    _last_failure: int = field(default=1, init=False)

    def run(self) -> int:
        """Runs trials until every point of the study is done.

        Returns:
          0, or the exit code of the last failed trial if no trial succeeded.

        Raises:
          Interrupted: a signal arrived; the trials received it too.
          UsageError: the evaluations of a trial lack a metric of the search.
        """
        try:
            with children.forwarded_signals(self._processes) as self._signals:
                while not self._is_over():
                    self._start_trials()
                    for run in list(self._runs):
                        self._look_after(run)
                    time.sleep(_POLL_SECONDS)
        finally:
            for run in self._runs:
                run.stop()
            for run in self._runs:
                if run.process is not None:
                    run.process.wait()
                self.ledger.release(run.claim)
        return self._exit_code or (0 if self.ledger.has_success() else self._last_failure)

    def _is_over(self) -> bool:
        if self._runs:
            return False
        if self._signals:
            raise Interrupted(
                "interrupted; started again, the search goes on where the trials saved",
                self._signals[0],
            )
        return bool(self._exit_code) or self.ledger.is_done()

    def _start_trials(self) -> None:
        free = list(self.devices)
        for run in self._runs:
            free.remove(run.devices)
        while free and not self._signals and not self._exit_code:
            claim = self.ledger.claim()
            if claim is None:
                return
            directory = self.directory / f"trial-{claim.point:04d}"
            log = directory.with_suffix(".log") if len(self.devices) > 1 else None
            self._runs.append(TrialRun(claim, directory, free.pop(), log))

    def _look_after(self, run: TrialRun) -> None:
        """Starts the process of a trial, reports its evaluations, or records its end."""
        if run.process is None and (self._signals or self._exit_code):
            self._remove(run)
            self.ledger.release(run.claim)
            return
        try:
            if not run.is_lost:
                self.ledger.heartbeat(run.claim)
            if run.process is None:
                self._start(run)
                return
            code = run.exit_code()
            if not run.is_lost:
                self._report(run)
            if code is not None:
                self._remove(run)
                if not run.is_lost:
                    self._record(run, code)
        except LostClaimError as error:
            say(str(error))
            run.is_lost = True
            run.stop()

    def _start(self, run: TrialRun) -> None:
        if not is_locked(run.directory):  # An earlier attempt may still be saving.
            place = f"{run.directory}, log in {run.log}" if run.log else f"{run.directory}"
            say(f"trial {run.claim.point}, in {place}")
            run.start(self.command(run.claim, run.directory), self._processes)

    def _report(self, run: TrialRun) -> None:
        """Reports new evaluations, and stops a trial that is worse than others."""
        for step, metrics in run.evaluations().items():
            values = self._values(metrics)
            # Optuna can only prune with a single objective.
            if step <= run.reported or len(values) > 1:
                continue
            is_worse = self.ledger.report(run.claim, step, values[0])
            run.reported = step
            if is_worse and step < self.prunes_before and not self._signals and not run.is_pruned:
                run.is_pruned = True
                run.stop()

    def _record(self, run: TrialRun, code: int) -> None:
        claim = run.claim
        last = max(run.evaluations().items(), default=None)
        if run.is_pruned and code:
            self.ledger.prune(claim)
            say(f"trial {claim.point} is pruned")
        elif code in INTERRUPTED:
            self.ledger.release(claim)
        elif code:
            self._fail(run, code, f"exit code {code}")
        elif last is None:
            self._fail(run, 1, f"no evaluation in {run.directory}")
        else:
            values = self._values(last[1])
            if any(math.isnan(value) for value in values):
                self._fail(run, 1, f"a metric is NaN at step {last[0]}")
            else:
                self.ledger.complete(claim, values)

    def _values(self, metrics: Mapping[str, float]) -> list[float]:
        with as_usage_error(LookupError):
            return [each.value_of(metrics) for each in self.objectives]

    def _fail(self, run: TrialRun, code: int, error: str) -> None:
        say(f"trial {run.claim.point} failed: {error}{run.last_line()}")
        self.ledger.fail(run.claim, error)
        self._failed += 1
        self._last_failure = code
        if self._failed >= _FAILURES and not self.ledger.has_success():
            self._exit_code = code
            for other in self._runs:
                other.stop()

    def _remove(self, run: TrialRun) -> None:
        self._runs.remove(run)
        if run.process is not None:
            self._processes.remove(run.process)


def say(text: str) -> None:
    """Prints a line for the user, among the output of the trials."""
    print(f"t2tp_tune: {text}", file=sys.stderr, flush=True)
