"""The files of checkpoints in memory: a part for each process, and copies of it on other hosts.

A part has the slices of some consecutive processors after some step. A step can be restored if the
parts of all processors are there, on whatever hosts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# Steps that a host keeps. The processes write in the background, one step at a time: while one
# begins to write a step, another may still write the step before, and only the one before that is
# sure to be complete.
KEPT_STEPS = 3

_NAME = re.compile(r"(\d{6})-(\d{8,})-(\d{5})-(\d{5})-(\d{5})\.part")
_PARTS = "parts"
_RESTORE = "restore.json"


class Part(NamedTuple):
    """What a part is, which its file's name says.

    Attributes:
      round: of the launcher in which it was written.
      step: steps done.
      first: its first processor.
      end: the processor after its last one.
      size: processors of the mesh.
    """

    round: int
    step: int
    first: int
    end: int
    size: int

    @property
    def name(self) -> str:
        """The name of the file."""
        return (
            f"{self.round:06d}-{self.step:08d}-{self.first:05d}-{self.end:05d}-{self.size:05d}.part"
        )

    @classmethod
    def parse(cls, name: str) -> Part | None:
        """Returns what a file's name says; None if it is not that of a part."""
        match = _NAME.fullmatch(name)
        return cls(*map(int, match.groups())) if match else None


def parts_directory(directory: Path) -> Path:
    """Returns where the parts are, in the launcher's directory; it is created."""
    path = directory / _PARTS
    path.mkdir(exist_ok=True)
    return path


def parts_in(directory: Path) -> dict[Part, Path]:
    """Returns the finished parts in a launcher's directory."""
    found = ((Part.parse(path.name), path) for path in parts_directory(directory).iterdir())
    return {part: path for part, path in found if part is not None}


def prune(directory: Path) -> None:
    """Deletes the parts of all steps but the latest `KEPT_STEPS`."""
    parts = parts_in(directory)
    kept = sorted({(part.round, part.step) for part in parts})[-KEPT_STEPS:]
    for part, path in parts.items():
        if (part.round, part.step) not in kept:
            path.unlink(missing_ok=True)


def choose_parts(there: Mapping[int, Iterable[str]]) -> tuple[tuple[str, int], ...]:
    """Chooses the parts to restore: those of the latest step of which all are there.

    Args:
      there: names of the parts that each host has.

    Returns:
      Name and host of each part, in the order of processors; empty if no step is complete.
    """
    hosts: dict[Part, int] = {}
    for host, names in there.items():
        hosts |= {part: host for part in map(Part.parse, names) if part is not None}
    by_save: dict[tuple[int, int, int], list[Part]] = {}
    for part in sorted(hosts):
        by_save.setdefault((part.step, part.round, part.size), []).append(part)
    for (_, _, size), parts in sorted(by_save.items(), reverse=True):
        end, chosen = 0, []
        for part in parts:
            if part.first == end:
                chosen.append(part)
                end = part.end
        if end == size:
            return tuple((part.name, hosts[part]) for part in chosen)
    return ()


def needed(names: Iterable[str], process: int, num_processes: int) -> list[str]:
    """Returns the parts that a process needs, of those of a step."""
    found = []
    for name in names:
        part = Part.parse(name)
        if part is None:
            continue
        each = part.size // num_processes
        if part.first < (process + 1) * each and part.end > process * each:
            found.append(name)
    return found


def write_choice(directory: Path, names: Sequence[str]) -> None:
    """Notes which parts the processes of a round restore."""
    (directory / _RESTORE).write_text(json.dumps(list(names)))


def read_choice(directory: Path) -> list[str]:
    """Returns the parts that the processes of this round restore."""
    try:
        return json.loads((directory / _RESTORE).read_text())
    except FileNotFoundError:
        return []
