"""Hosts on one machine: network namespaces on a switch, each with memory of its own.

Needs root and `ip` (iproute2). A bad link is a relay in user space, since `tc netem` is missing in
many small kernels: it loses and delays what passes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

# The namespaces of a process have its number in their names, since several may have some.
_PREFIX = f"t2tp-{os.getpid()}-"
_HUB = f"{_PREFIX}hub"
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x2, 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class BadLink:
    """What a link does to each frame, in each direction.

    Attributes:
      loss: part of the frames that it loses.
      seconds: by which it delays them.
    """

    loss: float
    seconds: float


def missing() -> str:
    """Returns why there can be no such hosts here; "" if there can."""
    if os.geteuid():
        return "network namespaces need root"
    try:
        _ip("netns", "add", f"{_PREFIX}try")
        _ip("netns", "del", f"{_PREFIX}try")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"there are no network namespaces here: {error}"
    return ""


class Network:
    """Hosts 0 to n-1 with the addresses 10.77.0.1 to n; use it as a context."""

    def __init__(self, count: int, bad_links: Mapping[int, BadLink] | None = None) -> None:
        """Sets the size.

        Args:
          count: of hosts.
          bad_links: of hosts that are not simply connected.
        """
        self.count = count
        self._bad_links = dict(bad_links or {})
        self._processes: dict[int, list[subprocess.Popen]] = {host: [] for host in range(count)}
        self._relays: dict[int, subprocess.Popen] = {}

    def __enter__(self) -> Network:
        _remove_abandoned()
        _ip("netns", "add", _HUB)
        _hub("ip", "link", "add", "switch", "type", "bridge")
        _hub("ip", "link", "set", "switch", "up")
        for host in range(self.count):
            name = _name(host)
            _ip("netns", "add", name)
            if host in self._bad_links:
                bad = self._bad_links[host]
                command = [sys.executable, __file__, name, _HUB, f"port{host}"]
                command += [str(bad.loss), str(bad.seconds)]
                relay = subprocess.Popen(command, stdout=subprocess.PIPE)
                assert relay.stdout is not None
                relay.stdout.readline()  # The devices are there.
                self._relays[host] = relay
            else:
                peer = ("peer", "name", f"port{host}", "netns", _HUB)
                _in(name, "ip", "link", "add", "eth0", "type", "veth", *peer)
            _hub("ip", "link", "set", f"port{host}", "master", "switch", "up")
            _in(name, "ip", "address", "add", f"{address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _in(name, "ip", "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in range(self.count):
            self._kill(host)
        for relay in self._relays.values():
            relay.kill()
            relay.wait()
        for name in (*map(_name, range(self.count)), _HUB):
            _ip("netns", "del", name)

    def start(
        self, host: int, command: Sequence[str], environment: Mapping[str, str], output: IO
    ) -> subprocess.Popen:
        """Starts a command on a host, with an empty /dev/shm that ends with it."""
        script = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
        enter = ["ip", "netns", "exec", _name(host), "unshare", "--mount", "sh", "-c", script, "-"]
        process = subprocess.Popen(
            [*enter, *command], env=dict(environment), stdout=output, stderr=output
        )
        self._processes[host].append(process)
        return process

    def wait(self, seconds: float) -> None:
        """Waits until everything on all hosts has ended, at most so long."""
        deadline = time.monotonic() + seconds
        for process in [each for host in self._processes.values() for each in host]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def commands(self, host: int) -> list[str]:
        """Returns the command lines of the processes of a host."""
        found = []
        for pid in _pids(host):
            with contextlib.suppress(OSError):  # It has just ended.
                found.append(
                    Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                )
        return found

    def power_off(self, host: int) -> None:
        """Ends a host as a power failure does: nobody on it says anything to anybody."""
        self.cut(host)
        self._kill(host)

    def cut(self, host: int) -> None:
        """Cuts the link of a host."""
        _hub("ip", "link", "set", f"port{host}", "down")

    def connect(self, host: int) -> None:
        """Mends the link of a host."""
        _hub("ip", "link", "set", f"port{host}", "up")

    def set_bad(self, host: int, is_bad: bool) -> None:
        """Makes a link good for a while, or bad again; it has to be one of the bad links."""
        self._relays[host].send_signal(signal.SIGUSR1 if is_bad else signal.SIGUSR2)

    def _kill(self, host: int) -> None:
        """Kills all processes of a host; again, since the dying may start others."""
        for _ in range(3):
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
    """Removes the namespaces of processes that have been killed."""
    for path in Path("/run/netns").glob("t2tp-*-*"):
        if not Path("/proc", path.name.split("-")[1]).exists():
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _in(name: str, *command: str) -> None:
    _ip("netns", "exec", name, *command)


def _hub(*command: str) -> None:
    _in(_HUB, *command)


def _open_tap(namespace: str, name: str) -> int:
    """Creates a device in a namespace, whose frames are read from and written to a file."""
    with open(f"/run/netns/{namespace}") as entrance:
        if _libc.setns(entrance.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI)
    fcntl.ioctl(descriptor, _TUNSETIFF, request)
    return descriptor


def relay(namespace: str, hub: str, port: str, loss: float, seconds: float) -> None:
    """Passes frames between a host's eth0 and its port of the switch, forever.

    SIGUSR2 makes the link good, and SIGUSR1 bad again.
    """
    is_bad = True

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal is_bad
        is_bad = number == signal.SIGUSR1

    signal.signal(signal.SIGUSR1, note)
    signal.signal(signal.SIGUSR2, note)
    ends = [_open_tap(namespace, "eth0"), _open_tap(hub, port)]
    print("ready", flush=True)
    waiting: list[tuple[float, int, int, bytes]] = []
    chance, count = random.Random(5), 0
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select(ends, [], [], patience)
        for end in readable:
            frame = os.read(end, 65536)
            if not is_bad or chance.random() >= loss:
                count += 1
                other = ends[1 - ends.index(end)]
                due = time.monotonic() + seconds * is_bad
                heapq.heappush(waiting, (due, count, other, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(waiting)
            try:
                os.write(end, frame)
            except OSError:  # The device is down, or its queue is full.
                continue


if __name__ == "__main__":
    relay(*sys.argv[1:4], float(sys.argv[4]), float(sys.argv[5]))
