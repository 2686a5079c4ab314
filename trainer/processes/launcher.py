"""Starts this host's processes, and starts them again after a failure; each start is a round.

Launchers of several hosts do not talk to each other. When a process is lost, the processes of all
hosts end. Each launcher restarts its host's processes. The restarted processes of all hosts connect
to the address of process 0.
"""

import itertools
import sys
from collections.abc import Callable, Sequence

from t2tp.trainer.errors import SIGNALLED, UsageError
from t2tp.trainer.processes import children
from t2tp.trainer.processes.local_processes import LocalProcesses

# Exit codes after which a restart cannot help: wrong usage, or no such command (126, 127).
_HOPELESS = (UsageError.exit_code, 126, 127)


def run_rounds(
    command: Sequence[str],
    environments: Callable[[], list[dict[str, str]]],
    first: int = 0,
    max_restarts: int = 0,
    local: LocalProcesses | None = None,
) -> int:
    """Runs a command in several processes until they succeed or fail for good.

    A run that a signal stopped is not restarted. If only another host received the signal, the exit
    code of this host's processes shows it.

    `environments` returns the environments of a round's processes. `first` is the index of this
    host's first process in the run.

    Returns:
      The exit code of the process that `LocalProcesses.wait` chooses in the last round; 0 if none
      failed.

    Raises:
      OSError: the command cannot be started.
    """
    local = local or LocalProcesses()
    with children.forwarded_signals(local.processes) as received:
        try:
            for restarts in itertools.count(1):
                local.start(command, environments(), first)
                if received:  # The signal came between two rounds.
                    local.signal(received[-1])
                outcome = local.wait()
                stopped = outcome.code in {SIGNALLED + each for each in children.stop_signals()}
                if received or stopped or outcome.code in (0, *_HOPELESS) or not max_restarts:
                    break
                if restarts > max_restarts:
                    _say(f"{outcome}, after {max_restarts} restarts: the run ends.")
                    break
                _say(f"{outcome}: restart {restarts} of {max_restarts}, from the last checkpoint.")
        finally:
            local.kill()
    return outcome.code


def _say(text: str) -> None:
    print(f"t2tp_launch: {text}", file=sys.stderr, flush=True)
