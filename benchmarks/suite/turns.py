"""Peers take turns on one machine: A B C, A B C. While one runs, the others wait."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from suite.hardware import cores

HERE = Path(__file__).parents[1]

# The max seconds until a peer answers, and until it ends after its input was closed.
PATIENCE = 600.0
TIDYING_UP = 10.0

# The max relative difference between first losses that can be due to rounding.
LOSS_TOLERANCE = {"float32": 1e-4, "bfloat16": 1e-2}

_ERROR = re.compile(r"\w+(Error|Exception)\b.*")


class AbsentError(Exception):
    """A peer cannot run here."""


@dataclass
class Peer:
    """A program in `peers/`, with its arguments.

    Attributes:
      name: name in the tables.
      program: `peers/<program>.py`, or a path.
      arguments: arguments of the program.
      environment: directory in `environments/` whose Python runs the program; "": t2tp's own.
      measures: what a turn measures. "step": the seconds of each step. "start_up": the seconds from
        the command to the end of the first step. A key of `facts`: that number. In the last two
        cases, each turn starts the program again.
      turns: the numbers that each turn so far has yielded.
      facts: the peer's report after its warm-up.
    """

    name: str
    program: str
    arguments: Sequence[str] = ()
    environment: str = ""
    measures: str = "step"
    turns: list[list[float]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    _process: subprocess.Popen | None = None
    _errors: IO[bytes] | None = None

    @property
    def dtype(self) -> str:
        """Element type of the peer's activations."""
        return "bfloat16" if "--dtype=bfloat16" in self.arguments else "float32"

    def start(self, patience: float = 0.0) -> None:
        """Starts the peer, and waits until it has warmed up.

        Args:
          patience: seconds in which the peer must answer; 0: `PATIENCE`.

        Raises:
          AbsentError: it is not installed, fails, or hangs.
        """
        command = [_python(self.environment), str(HERE / "peers" / f"{self.program}.py")]
        threads = {"OMP_NUM_THREADS": str(cores()), "TF_CPP_MIN_LOG_LEVEL": "3"}
        # If stderr were a pipe that nobody reads, a program that prints much would block.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (stop() closes it)
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [*command, *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | threads,
            start_new_session=True,
        )
        self.facts = self._answer(patience)
        self.facts["start_up"] = time.perf_counter() - began - self.facts.pop("warming_up", 0.0)

    def take_turn(self, steps: int) -> None:
        """Runs a turn of the peer.

        Raises:
          AbsentError: it fails or hangs.
        """
        if self.measures == "step":
            assert self._process is not None and self._process.stdin is not None
            try:
                print(steps, file=self._process.stdin, flush=True)
            except BrokenPipeError as error:
                raise AbsentError(self._last_words()) from error
            self.turns.append(self._answer())
        else:
            self.start()
            self.stop()
            self.turns.append([self.facts[self.measures]])

    def stop(self) -> None:
        """Ends the peer's processes. Its input is closed first, so that it can end by itself."""
        if self._process is not None and self._errors is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                self._process.stdin.close()
                self._process.wait(TIDYING_UP)
            # The peer leads a process group, so this also ends its children.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._errors.close()
            self._process = None

    def _answer(self, patience: float = 0.0) -> Any:
        assert self._process is not None and self._process.stdout is not None
        patience = patience or PATIENCE
        ready, _, _ = select.select([self._process.stdout], [], [], patience)
        if not ready:
            raise AbsentError(f"said nothing for {patience:.0f} seconds")
        line = self._process.stdout.readline()
        if not line:
            raise AbsentError(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        """Returns the peer's exit code and the last line of its output that names an error."""
        assert self._process is not None and self._errors is not None
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        errors = [match.group() for line in lines if (match := _ERROR.search(line))]
        last = (errors or lines or ["it says nothing"])[-1].replace(f"{HERE}/", "")
        return f"ended with code {self._process.returncode}: {last[:300]}"


def _python(environment: str) -> str:
    """Returns the Python of an environment.

    Raises:
      AbsentError: the environment is not installed.
    """
    if not environment:
        return sys.executable
    python = HERE / "environments" / environment / "bin" / "python"
    if python.exists():
        return str(python)
    log = HERE / "environments" / f"{environment}.log"
    lines = log.read_text("utf-8").strip().splitlines() if log.exists() else []
    reason = lines[-1][:300] if lines else "make bench installs it"
    raise AbsentError(f"the environment {environment!r} is not installed ({reason})")


def take_turns(peers: Sequence[Peer], turns: int, steps: int) -> tuple[list[Peer], dict[str, str]]:
    """Times peers in turns.

    Args:
      peers: the competitors, t2tp first.
      turns: number of turns after a warm-up.
      steps: number of steps in a turn.

    Returns:
      the peers that ran, and the reason of each absent peer. A peer is absent, too, if it computes
      something else than t2tp: if the losses of their first steps differ.
    """
    running: list[Peer] = []
    absent: dict[str, str] = {}

    def without_the_absent(do, peers: Sequence[Peer]) -> list[Peer]:
        still: list[Peer] = []
        for peer in peers:
            try:
                do(peer)
                still.append(peer)
            except AbsentError as error:
                absent[peer.name] = str(error)
                peer.stop()
        return still

    try:
        running = without_the_absent(_warm_up, peers)
        absent |= other_computations(running)
        running = [peer for peer in running if peer.name not in absent]
        for _ in range(turns):
            running = without_the_absent(lambda peer: peer.take_turn(steps), running)
    finally:
        for peer in peers:
            peer.stop()
    return running, absent


def _warm_up(peer: Peer) -> None:
    """Starts a peer, which also reads its files into the page cache.

    Stops the peer if each of its turns starts it again.
    """
    peer.start()
    if peer.measures != "step":
        peer.stop()


def other_computations(peers: Sequence[Peer]) -> dict[str, str]:
    """Returns peers that compute something else than the first peer, with an explanation.

    Their first loss differs from the first peer's by more than rounding explains.
    """
    with_losses = [peer for peer in peers if peer.facts.get("losses")]
    wrong = {}
    for peer in with_losses[1:]:
        loss, reference = (p.facts["losses"][0] for p in (peer, with_losses[0]))
        tolerance = max(LOSS_TOLERANCE[p.dtype] for p in (peer, with_losses[0]))
        if not abs(loss / reference - 1) <= tolerance:
            wrong[peer.name] = (
                f"computes something else: its first loss is {loss:.6g},"
                f" {with_losses[0].name} has {reference:.6g}"
            )
    return wrong
