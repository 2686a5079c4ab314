"""Copies of the parts of checkpoints in memory on another host, and their way back."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t2tp.processes.messages import Channel
from t2tp.trainer.memory_parts import (
    Part,
    needed,
    parts_directory,
    parts_in,
    prune,
    write_choice,
)
from t2tp.trainer.processes.group import Group
from t2tp.trainer.processes.plan import Plan

_LOOK_SECONDS = 0.1
_BLOCK_SECONDS = 20.0  # For a megabyte.


class Copies:
    """The parts on this host: its own, which go to the next host, and those of the host before."""

    def __init__(self, host: int, directory: Path) -> None:
        """Prepares without copying.

        Args:
          host: index of this host.
          directory: of the launcher.
        """
        self._host = host
        self._directory = directory
        self._plan: Plan | None = None
        self._sent: set[str] = set()
        self._closed = threading.Event()

    @property
    def services(self) -> dict[str, Any]:
        """What the launcher answers to other hosts: takes a part, gives a part."""
        return {"take part": self._take, "give part": self._give}

    def start(self, group: Group) -> None:
        """Begins to copy, in a thread."""
        threading.Thread(target=self._run, args=(group,), name="copies", daemon=True).start()

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()

    def names(self) -> tuple[str, ...]:
        """Returns the names of the parts that are here."""
        return tuple(sorted(part.name for part in parts_in(self._directory)))

    def prepare(self, group: Group, plan: Plan) -> None:
        """Gets the parts that this host's processes restore in a round, before they start.

        One that cannot be had is missing then, and the processes restore from disk.
        """
        hosts = dict(plan.memory)
        names = dict.fromkeys(
            name
            for process in plan.processes_of(self._host)
            for name in needed(hosts, process, len(plan.addresses))
        )
        here = self.names()
        for name in names:
            if name not in here:
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    self._fetch(group, hosts[name], name)
        write_choice(self._directory, list(names))
        self._plan = plan

    def _run(self, group: Group) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            plan = self._plan
            if plan is None or len(plan.members) < 2:
                continue
            after = plan.members.index(self._host) + 1 if self._host in plan.members else 0
            neighbour = plan.members[after % len(plan.members)]
            for part in self._unsent(plan):
                try:
                    self._send(group, neighbour, part)
                except (OSError, ValueError, KeyError, TypeError):
                    break  # The next round copies to whoever is there.

    def _unsent(self, plan: Plan) -> Sequence[Part]:
        """Returns the latest part of each of this host's processes, if it has no copy yet."""
        latest: dict[int, Part] = {}
        own = plan.processes_of(self._host)
        for part in sorted(parts_in(self._directory)):
            each = part.size // len(plan.addresses)
            if part.round == plan.number and part.first // each in own:
                latest[part.first] = part
        return [part for part in latest.values() if part.name not in self._sent]

    def _send(self, group: Group, host: int, part: Part) -> None:
        path = parts_directory(self._directory) / part.name
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            body = {"name": part.name, "size": size}
            channel = group.open(host, "take part", body, _BLOCK_SECONDS)
            with contextlib.closing(channel):
                channel.receive(_deadline())
                channel.send_file(file, size, _BLOCK_SECONDS)
                channel.receive(_deadline())
        self._sent.add(part.name)

    def _take(self, body: dict, channel: Channel) -> None:
        """Receives a copy; it has its name only when it is complete."""
        part = Part.parse(body["name"])
        if part is None or type(body["size"]) is not int:
            return
        channel.send({"go": True}, _deadline())
        self._receive(channel, part.name, body["size"])
        prune(self._directory)
        channel.send({"done": True}, _deadline())

    def _give(self, body: dict, channel: Channel) -> None:
        part = Part.parse(body["name"])
        if part is None:
            return
        with open(parts_directory(self._directory) / part.name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            channel.send({"size": size}, _deadline())
            channel.receive(_deadline())
            channel.send_file(file, size, _BLOCK_SECONDS)

    def _fetch(self, group: Group, host: int, name: str) -> None:
        with contextlib.closing(
            group.open(host, "give part", {"name": name}, _BLOCK_SECONDS)
        ) as channel:
            size = channel.receive(_deadline())["size"]
            channel.send({"go": True}, _deadline())
            self._receive(channel, name, size)

    def _receive(self, channel: Channel, name: str, size: int) -> None:
        path = parts_directory(self._directory) / name
        unfinished = path.with_name(f"{name}.copy-{threading.get_ident()}")
        try:
            with open(unfinished, "wb") as file:
                channel.receive_file(file, size, _BLOCK_SECONDS)
            unfinished.rename(path)
        finally:
            unfinished.unlink(missing_ok=True)


def _deadline() -> float:
    return time.monotonic() + _BLOCK_SECONDS
