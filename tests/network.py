"""Simulates hosts as network namespaces on a switch; requires root and `ip` (iproute2)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

# The names of a process's namespaces contain its number, so that tests may run in parallel.
_PREFIX = f"t2tp-{os.getpid()}-"
_HUB = f"{_PREFIX}hub"


def missing() -> str:
    """Returns why this machine cannot simulate hosts; "" if it can."""
    if os.geteuid():
        return "network namespaces need root"
    try:
        _ip("netns", "add", f"{_PREFIX}try")
        _ip("netns", "del", f"{_PREFIX}try")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"there are no network namespaces here: {error}"
    return ""


class Network:
    """Simulates hosts 0 to n-1 with the addresses 10.77.0.1 to 10.77.0.n; a context manager."""

    def __init__(self, count: int) -> None:
        self._processes: dict[int, list[subprocess.Popen]] = {host: [] for host in range(count)}

    def __enter__(self) -> Network:
        _remove_abandoned()
        _ip("netns", "add", _HUB)
        _in(_HUB, "ip", "link", "add", "switch", "type", "bridge")
        _in(_HUB, "ip", "link", "set", "switch", "up")
        for host in self._processes:
            name = _name(host)
            _ip("netns", "add", name)
            peer = ("peer", "name", f"port{host}", "netns", _HUB)
            _in(name, "ip", "link", "add", "eth0", "type", "veth", *peer)
            _in(_HUB, "ip", "link", "set", f"port{host}", "master", "switch", "up")
            _in(name, "ip", "address", "add", f"{address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _in(name, "ip", "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._processes:
            self._kill(host)
        for name in (*map(_name, self._processes), _HUB):
            _ip("netns", "del", name)

    def start(self, host, command, environment, output):
        """Starts a command on a host."""
        enter = ["ip", "netns", "exec", _name(host)]
        process = subprocess.Popen(
            [*enter, *command], env=dict(environment), stdout=output, stderr=output
        )
        self._processes[host].append(process)
        return process

    def power_off(self, host: int) -> None:
        """Ends a host like a power failure: the other hosts receive no last message."""
        _in(_HUB, "ip", "link", "set", f"port{host}", "down")
        self._kill(host)

    def power_on(self, host: int) -> None:
        """Connects a host to the network again."""
        _in(_HUB, "ip", "link", "set", f"port{host}", "up")

    def _kill(self, host: int) -> None:
        for _ in range(3):  # A dying process may start others.
            for pid in _pids(host):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._processes[host]:
            process.wait()
        self._processes[host].clear()


def address(host: int) -> str:
    """Returns the address of a host."""
    return f"10.77.0.{host + 1}"


def _name(host: int) -> str:
    return f"{_PREFIX}host{host}"


def _pids(host: int) -> list[int]:
    command = ["ip", "netns", "pids", _name(host)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]


def _remove_abandoned() -> None:
    """Removes the namespaces that killed processes left."""
    for path in Path("/run/netns").glob("t2tp-*-*"):
        if not Path("/proc", path.name.split("-")[1]).exists():
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _in(name: str, *command: str) -> None:
    _ip("netns", "exec", name, *command)
