"""`TrialRun`: the process that trains one trial, its devices, and the evaluations it records."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from t2tp.processes.process_spec import THREADS_VARIABLE
from t2tp.trainer.errors import SIGNALLED
from t2tp.trainer.processes import children
from t2tp.trainer.run_dir.evaluation_record import EvaluationRecord
from t2tp.trainer.search.ledger import Claim

# Exit codes of a run that was stopped by a signal, and saved.
INTERRUPTED = tuple(SIGNALLED + each for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))


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
class TrialRun:
    """The training of one claimed trial in its directory.

    Attributes:
      directory: directory of the run.
      devices: the devices that the process may use.
      log: file for the output of the process; None: this process's output.
      is_pruned: whether the pruner has stopped the run.
      is_lost: whether another process has ended the trial.
      process: the process that trains; None before its start.
      reported: step of the last evaluation that Optuna knows.
    """

    claim: Claim
    directory: Path
    devices: Devices
    log: Path | None = None
    is_pruned: bool = field(default=False, init=False)
    is_lost: bool = field(default=False, init=False)
    process: subprocess.Popen | None = field(default=None, init=False)
    reported: int = field(default=-1, init=False)

    def start(self, command: Sequence[str], processes: list[subprocess.Popen]) -> None:
        """Starts the process and appends it to `processes`.

        Raises:
          OSError: the command cannot be started, or the log cannot be written.
        """
        cores, environment = self.devices.cores, self.devices.environment()
        if self.log is None:
            self.process = children.start(command, processes, cores, env=environment)
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = children.start(
                command, processes, cores, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def exit_code(self) -> int | None:
        """Returns the process's exit code; None while it runs or is not started."""
        code = None if self.process is None else self.process.poll()
        return None if code is None else children.exit_code(code)

    def stop(self) -> None:
        """Sends SIGTERM to the process, if it is started."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)

    def last_line(self) -> str:
        """Returns the last line of the log, in brackets; "" if there is none."""
        if self.log is None:
            return ""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""

    def evaluations(self) -> dict[int, dict[str, float]]:
        """Returns step -> metrics of all evaluations."""
        return EvaluationRecord(self.directory / "eval").by_step()
