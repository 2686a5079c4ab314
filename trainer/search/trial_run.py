"""`TrialRun`: the process that trains one trial, and the evaluations that it records."""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from t2tp.trainer.errors import SIGNALLED
from t2tp.trainer.processes import children
from t2tp.trainer.run_dir.evaluation_record import EvaluationRecord
from t2tp.trainer.search.devices import Devices
from t2tp.trainer.search.ledger import Claim

# Exit codes of a run that was stopped by a signal, and saved.
INTERRUPTED = tuple(SIGNALLED + each for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))


class TrialRun:
    """The training of one claimed trial in its directory.

    Attributes:
      log: file for the output of the process; None: this process's output.
      is_pruned: whether the pruner has stopped the run.
      is_lost: whether another process has ended the trial.
      process: the process that trains; None before its start.
    """

    def __init__(
        self, claim: Claim, directory: Path, devices: Devices, log: Path | None = None
    ) -> None:
        """Sets the attributes; starts nothing yet."""
        self.claim = claim
        self.directory = directory
        self.devices = devices
        self.is_pruned = False
        self.is_lost = False
        self.process: subprocess.Popen | None = None
        self.log = log
        self._reported = -1

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

    def new_evaluations(self) -> dict[int, dict[str, float]]:
        """Returns step -> metrics of the evaluations since the last call."""
        found = self.evaluations()
        new = {step: metrics for step, metrics in found.items() if step > self._reported}
        self._reported = max(new, default=self._reported)
        return new

    def prune(self) -> None:
        """Asks the process to finish its step, save and exit."""
        self.is_pruned = True
        self.stop()

    def stop(self) -> None:
        """Sends SIGTERM to the process, if it is started."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Waits for the end of the process, if it is started."""
        if self.process is not None:
            self.process.wait()

    def last_line(self) -> str:
        """Returns the last line of the log, in brackets; "" if there is none."""
        if self.log is None:
            return ""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""

    def evaluations(self) -> dict[int, dict[str, float]]:
        """Returns step -> metrics of all evaluations."""
        return EvaluationRecord(self.directory / "eval").by_step()
