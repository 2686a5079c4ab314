"""Failures of a run, and which of them a restart may cure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from t2tp.processes.rendezvous import LOST_EXIT_CODE
from t2tp.trainer.errors import SIGNALLED, UsageError

# The run ends when the same error has occurred this many times at the same step.
LOOP = 3

# What ends a run by request: SIGINT, SIGTERM.
STOPPED = (SIGNALLED + 2, SIGNALLED + 15)
# A wrong request, or a command that cannot be started, fails again.
HOPELESS = (UsageError.exit_code, 126, 127)

# Parts of an error that differ from time to time.
_VARYING = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(frozen=True)
class Outcome:
    """How the processes of a host ended in a round.

    Attributes:
      code: exit code of the process that failed first, as in shells; 0: all were successful.
      process: its index in the run.
      step: training steps that were done; 0 if unknown.
      error: the last line that it printed on stderr.
    """

    code: int
    process: int = 0
    step: int = 0
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain JSON."""
        return asdict(self)

    @property
    def is_consequence(self) -> bool:
        """Whether the process ended only because another one was lost."""
        return self.code == LOST_EXIT_CODE

    def describe(self) -> str:
        """Returns a clause such as `process 1 was killed by signal 9 at step 120`."""
        if self.code > SIGNALLED:
            how = f"was killed by signal {self.code - SIGNALLED}"
        else:
            how = f"failed with exit code {self.code}"
        return f"process {self.process} {how}" + (f" at step {self.step}" if self.step else "")


def crash_of(outcome: Outcome) -> tuple[int, str]:
    """Returns what identifies a failure: the step, and the error without its numbers."""
    what = _VARYING.sub("#", outcome.error) if outcome.error else ""
    return outcome.step, f"{outcome.code} {what}"


def is_loop(crashes: Sequence[tuple[int, str]]) -> bool:
    """Whether the latest failures are the same error at the same step, `LOOP` times."""
    latest = crashes[-LOOP:]
    return len(latest) == LOOP and len(set(latest)) == 1
