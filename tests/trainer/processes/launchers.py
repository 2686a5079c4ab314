"""Launchers as processes, with commands that take no time."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from t2tp.processes.rendezvous import free_port

ROOT = Path(__file__).parents[3]
LAUNCH = [sys.executable, "-m", "t2tp.trainer.cli", "t2tp_launch"]
# The same with its memory in a directory; and a host that is back takes part at once.
_LAUNCH_IN = """
import sys
from pathlib import Path
from t2tp.trainer.cli import launch, programs
from t2tp.trainer.processes import leader
launch._MEMORY = Path(sys.argv.pop(1))
leader._SETTLE_SECONDS = 0.0
sys.exit(programs.t2tp_launch())
"""
# A test may run on a machine on which nothing moves for seconds.
PATIENCE = 600.0

# What a command knows of itself.
_PRELUDE = """
import json, os, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task, size = config["task"]["index"], len(config["cluster"]["worker"])
number = int(os.environ["T2TP_ROUND"])
print("round", number, "process", task, "of", size, flush=True)
"""
# One that saves and exits when it is asked to.
POLITE = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"


def python(text: str) -> list[str]:
    """A command that knows `task`, `size` and the `number` of the round."""
    return [sys.executable, "-c", f"{_PRELUDE}{text}"]


class Launchers:
    """Launchers of several hosts, all on this one; what each says is in a file."""

    def __init__(self, count: int, directory: Path, command: Sequence[str]) -> None:
        self._ports = [free_port() for _ in range(count)]
        self._hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        self._directory = directory
        self._command = command
        self._memory = directory / "memory"
        self._memory.mkdir()
        self.processes: dict[int, subprocess.Popen] = {}

    def start(self, host: int) -> None:
        """Starts the launcher of a host."""
        launch = [sys.executable, "-c", _LAUNCH_IN, str(self._memory), "-n", "1"]
        launch += [f"--hosts={self._hosts}", f"--host_id={host}", f"--host_timeout={PATIENCE}"]
        with (self._directory / f"host{host}").open("a") as said:
            self.processes[host] = subprocess.Popen(
                [*launch, *self._command],
                cwd=ROOT,
                env={**os.environ, "T2TP_SECRET": "for a test"},
                stdout=said,
                stderr=said,
            )

    def wait_until_it_listens(self, host: int) -> None:
        """Waits until the others can reach a host."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", self._ports[host])).close()
                return
            time.sleep(0.02)
        raise TimeoutError(f"host {host} never listened")

    def said(self, host: int) -> str:
        """What a launcher and its process have said."""
        return (self._directory / f"host{host}").read_text()

    def lose(self, host: int) -> None:
        """Kills all processes of a host at once."""
        launcher = self.processes[host]
        os.kill(launcher.pid, signal.SIGSTOP)  # It must not notice.
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        launcher.kill()
        launcher.wait()

    def wait(self) -> dict[int, int]:
        """Waits for all; returns their exit codes."""
        return {host: each.wait(PATIENCE) for host, each in self.processes.items()}


@contextlib.contextmanager
def launchers(count: int, directory: Path, *command: str) -> Iterator[Launchers]:
    """All hosts' launchers, started; killed at the end if they have not ended. Host 0 leads.

    That a host is lost they learn from its refused connections, and not because time passes.

    Args:
      count: of hosts.
      directory: for what they say.
      *command: flags of the launchers and the command.
    """
    hosts = Launchers(count, directory, command)
    try:
        for host in range(count):
            hosts.start(host)
            if host == 0:  # If another were the first that listens, that one would lead.
                hosts.wait_until_it_listens(0)
        yield hosts
    finally:
        for process in hosts.processes.values():
            process.terminate()  # Its processes get SIGTERM, too.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()
