"""The plan of a round: which processes run, on which hosts, with which mesh."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_MESH = re.compile(r"\s*\w+:[1-9]\d*(\s*;\s*\w+:[1-9]\d*)*\s*")


@dataclass(frozen=True)
class Offer:
    """What a host has for the next round.

    Attributes:
      addresses: `host:port` for each process that it can run.
      has_gpus: whether these processes run on GPUs.
    """

    addresses: tuple[str, ...]
    has_gpus: bool = False


@dataclass(frozen=True)
class Plan:
    """The processes of a round.

    Attributes:
      number: of the round, from 1; a later round has a larger one.
      leader: the host that made the plan; `leader.NOBODY` once it has left the run.
      hosts: of each process, in order; the processes of a host are neighbours.
      addresses: `host:port` of each process.
      mesh: the mesh shape to train with; "": that of the command.
      restarts: how many failures there have been before the round.
      crashes: the latest failures, as `crashes.crash_of` returns them.
      memory: name and host of each part of the checkpoint in memory that the round begins with.
    """

    number: int
    leader: int
    hosts: tuple[int, ...]
    addresses: tuple[str, ...]
    mesh: str = ""
    restarts: int = 0
    crashes: tuple[tuple[int, str], ...] = field(default=())
    memory: tuple[tuple[str, int], ...] = field(default=())

    def processes_of(self, host: int) -> list[int]:
        """Returns the indices of a host's processes."""
        return [process for process, on in enumerate(self.hosts) if on == host]

    @property
    def members(self) -> tuple[int, ...]:
        """The hosts that run processes, in order."""
        return tuple(dict.fromkeys(self.hosts))

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Plan:
        """Reads what `to_json` returned.

        Raises:
          TypeError: it is something else.
        """
        known = dict(fields)
        known["hosts"], known["addresses"] = tuple(known["hosts"]), tuple(known["addresses"])
        known["crashes"] = tuple((step, error) for step, error in known["crashes"])
        known["memory"] = tuple((name, host) for name, host in known["memory"])
        return cls(**known)


def parse_meshes(text: str, num_processes: int) -> tuple[str, ...]:
    """Parses `--meshes`: mesh shapes separated by |, the preferred one first.

    Args:
      text: such as `data:4;model:2 | data:2;model:2`.
      num_processes: how many processes the first is for.

    Raises:
      ValueError: one is not a mesh shape, or cannot be divided among processes.
    """
    meshes = tuple("".join(each.split()) for each in text.split("|")) if text.strip() else ()
    for mesh in meshes:
        if not _MESH.fullmatch(mesh):
            raise ValueError(f"--meshes={text}: {mesh!r} is not a mesh shape like data:4;model:2.")
    if not meshes:
        return ()
    if mesh_size(meshes[0]) % num_processes:
        raise ValueError(
            f"--meshes={text}: {num_processes} processes cannot share the {mesh_size(meshes[0])}"
            f" processors of {meshes[0]} equally."
        )
    each = mesh_size(meshes[0]) // num_processes
    for mesh in meshes[1:]:
        if mesh_size(mesh) % each:
            raise ValueError(
                f"--meshes={text}: a process has {each} devices, and the {mesh_size(mesh)}"
                f" processors of {mesh} are not a multiple of that."
            )
    return meshes


def mesh_size(mesh: str) -> int:
    """Returns the number of processors of a mesh shape."""
    return math.prod(int(axis.partition(":")[2]) for axis in mesh.split(";"))


def choose(
    offers: Mapping[int, Offer], num_processes: int, meshes: Sequence[str]
) -> tuple[int, str] | None:
    """Chooses how many processes run, and the mesh.

    Without other meshes the mesh stays, and fewer processes have more virtual devices each; their
    number divides that of the full run, which divides the mesh. GPUs are not divided, so that a run
    on GPUs without other meshes waits for all of its processes.

    Args:
      offers: of the hosts that are there.
      num_processes: of the full run.
      meshes: see `parse_meshes`.

    Returns:
      Number of processes, and the mesh ("": the command's); None if there are too few hosts.
    """
    there = sum(len(offer.addresses) for offer in offers.values())
    if meshes:
        each = mesh_size(meshes[0]) // num_processes
        fitting = [mesh for mesh in meshes if mesh_size(mesh) // each <= there]
        return (mesh_size(fitting[0]) // each, fitting[0]) if fitting else None
    if any(offer.has_gpus for offer in offers.values()):
        return (num_processes, "") if there >= num_processes else None
    divisors = [n for n in range(1, min(there, num_processes) + 1) if num_processes % n == 0]
    return (divisors[-1], "") if divisors else None


def place(offers: Mapping[int, Offer], count: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Places processes on hosts, as evenly as possible.

    Args:
      offers: of the hosts; they have at least `count` addresses.
      count: how many processes to place.

    Returns:
      Host and address of each process; those of a host are neighbours.
    """
    numbers = dict.fromkeys(sorted(offers), 0)
    placed = 0
    while placed < count:
        for host in numbers:
            if placed < count and numbers[host] < len(offers[host].addresses):
                numbers[host] += 1
                placed += 1
    hosts = tuple(host for host, number in numbers.items() for _ in range(number))
    addresses = [a for host, number in numbers.items() for a in offers[host].addresses[:number]]
    return hosts, tuple(addresses)
