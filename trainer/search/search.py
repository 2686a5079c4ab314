"""`TrialSearch`: trains the points of a study, several at a time, until all are done."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from t2tp.best_metric import BestMetric
from t2tp.processes.process_spec import THREADS_VARIABLE
from t2tp.trainer.errors import SIGNALLED, Interrupted, as_usage_error
from t2tp.trainer.processes import children
from t2tp.trainer.run_dir.evaluation_record import EvaluationRecord
from t2tp.trainer.run_dir.lock_file import is_locked
from t2tp.trainer.search.ledger import Claim, Ledger, LostClaimError

# Exit codes of a run that was stopped by a signal, and saved.
_INTERRUPTED = tuple(SIGNALLED + each for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
# After this number of failures without a success, the flags of all trials are probably wrong, and
# the search ends.
_FAILURES = 3
_POLL_SECONDS = 0.2
_DONE = object()  # Marks the end of a trial's work.

Command = Callable[[Claim, Path], Sequence[str]]


@dataclass(frozen=True)
class Devices:
    """The devices of one trial; by default, all devices of this host."""

    gpus: Sequence[str] = ()
    cores: Sequence[int] = ()

    @classmethod
    def of_each(
        cls, trials: int, each: int | None, gpus: Sequence[str], cores: Sequence[int]
    ) -> list[Devices]:
        """Divides GPUs or, on a host without any, cores among trials.

        `each` is the number of devices of each trial; None: an equal share, or all cores if there
        are more trials than cores.

        Raises:
          ValueError: there are too few devices.
        """
        if trials == 1 and each is None:
            return [cls()]
        devices: Sequence[str | int] = gpus or cores
        what = "GPUs" if gpus else "cores"
        count = each or len(devices) // trials
        if not gpus and each is None and not count:
            return [cls()] * trials
        if not count or count * trials > len(devices):
            raise ValueError(
                f"{trials} trials with {max(1, count)} {what} each need {max(1, count) * trials},"
                f" and there are {len(devices)}: run fewer at once with --parallel_trials, or give"
                " each fewer with --devices_per_trial"
            )
        starts = range(0, count * trials, count)
        if gpus:
            return [cls(gpus=gpus[start : start + count]) for start in starts]
        return [cls(cores=cores[start : start + count]) for start in starts]

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Returns the environment of a trial's process, based on `base`."""
        variables = dict(base)
        if self.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)
        if self.cores:
            variables.setdefault(THREADS_VARIABLE, str(len(self.cores)))
        return variables


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
    # Index of the devices -> the trial that runs on them, and the rest of its work.
    _running: dict[int, tuple[Claim, Iterator[None]]] = field(default_factory=dict, init=False)
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
                    for number, (_, work) in list(self._running.items()):
                        if next(work, _DONE) is _DONE:
                            del self._running[number]
                    time.sleep(_POLL_SECONDS)
        finally:
            self._stop_all()
            for process in self._processes:
                process.wait()
            for claim, _ in self._running.values():
                self.ledger.release(claim)
        return self._exit_code or (0 if self.ledger.has_success() else self._last_failure)

    def _is_over(self) -> bool:
        if self._running:
            return False
        if self._signals:
            raise Interrupted(
                "interrupted; started again, the search goes on where the trials saved",
                self._signals[0],
            )
        return bool(self._exit_code) or self.ledger.is_done()

    def _is_ending(self) -> bool:
        return bool(self._signals or self._exit_code)

    def _stop_all(self) -> None:
        for process in self._processes:
            process.terminate()

    def _start_trials(self) -> None:
        """Claims a trial for each of the free devices."""
        for number, devices in enumerate(self.devices):
            if number in self._running:
                continue
            claim = None if self._is_ending() else self.ledger.claim()
            if claim is None:
                return
            self._running[number] = claim, self._train(claim, devices)

    def _train(self, claim: Claim, devices: Devices) -> Iterator[None]:
        """Trains a claimed trial in its own process; yields whenever it has to wait."""
        directory = self.directory / f"trial-{claim.point:04d}"
        log = directory.with_suffix(".log") if len(self.devices) > 1 else None
        process = None
        try:
            # An earlier attempt may still be saving.
            while is_locked(directory) and not self._is_ending():
                self.ledger.heartbeat(claim)
                yield
            if self._is_ending():
                self.ledger.release(claim)
                return
            say(f"trial {claim.point}, in {directory}" + (f", log in {log}" if log else ""))
            command = self.command(claim, directory)
            process = _start(command, self._processes, devices, log)
            yield from self._watch(claim, process, directory, log)
        except LostClaimError as error:
            say(str(error))
            if process is not None:
                process.terminate()
                while process.poll() is None:
                    yield
        if process is not None:
            self._processes.remove(process)

    def _watch(
        self, claim: Claim, process: subprocess.Popen, directory: Path, log: Path | None
    ) -> Iterator[None]:
        """Reports a trial's evaluations, stops it if it is worse than others, records its end."""
        record = EvaluationRecord(directory / "eval")
        code, reported, is_pruned = None, -1, False
        while code is None:
            yield
            self.ledger.heartbeat(claim)
            code = process.poll()
            evaluations = record.by_step()
            for step, metrics in evaluations.items():
                values = self._values(metrics)
                # Optuna can only prune with a single objective.
                if step <= reported or len(values) > 1:
                    continue
                is_worse = self.ledger.report(claim, step, values[0])
                reported = step
                if is_worse and step < self.prunes_before and not (self._signals or is_pruned):
                    is_pruned = True
                    process.terminate()
        code = children.exit_code(code)
        last = max(evaluations.items(), default=None)
        values = [] if last is None else self._values(last[1])
        if is_pruned and code:
            self.ledger.prune(claim)
            say(f"trial {claim.point} is pruned")
        elif code in _INTERRUPTED:
            self.ledger.release(claim)
        elif code:
            self._fail(claim, code, f"exit code {code}", log)
        elif last is None:
            self._fail(claim, 1, f"no evaluation in {directory}", log)
        elif any(map(math.isnan, values)):
            self._fail(claim, 1, f"a metric is NaN at step {last[0]}", log)
        else:
            self.ledger.complete(claim, values)

    def _values(self, metrics: Mapping[str, float]) -> list[float]:
        with as_usage_error(LookupError):
            return [each.value_of(metrics) for each in self.objectives]

    def _fail(self, claim: Claim, code: int, error: str, log: Path | None) -> None:
        lines = [] if log is None else log.read_text(errors="replace").strip().splitlines()
        say(f"trial {claim.point} failed: {error}" + (f" ({lines[-1]})" if lines else ""))
        self.ledger.fail(claim, error)
        self._failed += 1
        self._last_failure = code
        if self._failed >= _FAILURES and not self.ledger.has_success():
            self._exit_code = code
            self._stop_all()


def _start(
    command: Sequence[str], processes: list[subprocess.Popen], devices: Devices, log: Path | None
) -> subprocess.Popen:
    """Starts a trial's process and appends it to `processes`; its output is appended to `log`.

    Raises:
      OSError: the command cannot be started, or the log cannot be written.
    """
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.nullcontext() if log is None else log.open("ab") as output:
        errors = None if output is None else subprocess.STDOUT
        environment = devices.environment()
        return children.start(
            command, processes, devices.cores, env=environment, stdout=output, stderr=errors
        )


def say(text: str) -> None:
    """Prints a line for the user, among the output of the trials."""
    print(f"t2tp_tune: {text}", file=sys.stderr, flush=True)
