"""Peers take turns on one machine: A B C, A B C. While one runs, the others wait."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class AbsentError(Exception):
    """A peer cannot run here."""


@dataclass
class Peer:
    """A program in `peers/`, with its arguments.

    Attributes:
      name: in the tables.
      program: `peers/<program>.py`.
      arguments: for the program.
      environment: whose Python runs it: `environments/<environment>` here, or t2tp's own.
      seconds: of each of its steps so far.
      facts: what it said of itself when it had warmed up.
    """

    name: str
    program: str
    arguments: Sequence[str] = ()
    environment: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    _process: subprocess.Popen | None = None

    def start(self) -> None:
        """Starts it, and waits until it has warmed up.

        Raises:
          AbsentError: it is not installed, or fails.
        """
        python = sys.executable
        if self.environment:
            python = str(HERE / "environments" / self.environment / "bin" / "python")
            if not os.path.exists(python):
                raise AbsentError("not installed (make bench installs it)")
        command = [python, str(HERE / "peers" / f"{self.program}.py"), *self.arguments]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | self.variables,
        )
        self.facts = self._answer()

    def run(self, steps: int) -> None:
        """Gives it a turn."""
        assert self._process is not None and self._process.stdin is not None
        print(steps, file=self._process.stdin, flush=True)
        self.seconds += self._answer()

    def stop(self) -> None:
        """Ends its process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    @property
    def median(self) -> float:
        """Seconds of a step."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / 2 / self.median

    def _answer(self) -> Any:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, errors = self._process.communicate()
            raise AbsentError((errors.strip() or "no message").splitlines()[-1][:300])
        return json.loads(line)


def take_turns(peers: Sequence[Peer], turns: int, steps: int) -> tuple[list[Peer], dict[str, str]]:
    """Times the peers.

    Args:
      peers: the competitors.
      turns: how often each gets its turn.
      steps: in a turn.

    Returns:
      those that ran, and for each of the others the reason why not.

    Raises:
      AssertionError: the losses of the first step disagree: somebody computes something else.
    """
    running: list[Peer] = []
    absent: dict[str, str] = {}
    try:
        for peer in peers:
            try:
                peer.start()
                running.append(peer)
            except AbsentError as error:
                absent[peer.name] = str(error)
        check_equal(running)
        for _ in range(turns):
            for peer in running:
                peer.run(steps)
    finally:
        for peer in peers:
            peer.stop()
    return running, absent


def check_equal(peers: Sequence[Peer]) -> None:
    """Refuses to compare peers whose first losses differ by more than their precision explains."""
    losses = {p.name: p.facts["losses"][0] for p in peers if p.program != "matmul"}
    reference = statistics.median(losses.values())
    narrow = {p.name for p in peers if "--dtype=bfloat16" in p.arguments}
    wrong = [
        name
        for name, loss in losses.items()
        if abs(loss / reference - 1) > (1e-2 if name in narrow else 1e-4)
    ]
    if wrong:
        raise AssertionError(f"the first step's losses disagree: {losses}")
