"""Stores the times of all repetitions of benchmarks as JSON, and computes ratios of times."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from suite.turns import Peer

# The program that measures the machine's peak rate.
PEAK = "matmul"
# The program that runs only the matmuls and sums over devices of a step: a lower bound of its time.
BARE = "bare_step"


@dataclass(frozen=True)
class Timed:
    """A peer that took its turns.

    Attributes:
      name: name in the tables.
      program: name of the program in `peers/`.
      arguments: arguments of the program.
      turns: seconds, [turn][step].
      facts: the program's report.
    """

    name: str
    program: str
    arguments: list[str]
    turns: list[list[float]]
    facts: dict[str, Any]

    @classmethod
    def from_peer(cls, peer: Peer) -> Timed:
        """Copies the stored attributes of a peer."""
        return cls(peer.name, peer.program, list(peer.arguments), peer.turns, peer.facts)

    @property
    def is_other(self) -> bool:
        """Whether it is another project's program that does the same work."""
        is_ours = self.name.startswith("t2tp") or "--engine=t2tp" in self.arguments
        return not self.is_yardstick and not is_ours

    @property
    def is_yardstick(self) -> bool:
        """Whether it is only a reference: the machine's peak, or a part of the work."""
        return self.program in (PEAK, BARE)

    @property
    def seconds(self) -> float:
        """Seconds of a step: the median of all steps."""
        return statistics.median(s for turn in self.turns for s in turn)

    @property
    def spread(self) -> float:
        """Spread of the steps' seconds, relative to their median."""
        return half_quartile_distance([s for turn in self.turns for s in turn]) / self.seconds


@dataclass(frozen=True)
class Ratio:
    """The time of one program (mostly t2tp) divided by another's: below 1, the first is faster.

    Attributes:
      value: median of the ratios of all turns; the two programs ran one after the other in a turn.
      spread: half the distance between the quartiles of these ratios, relative to the value.
    """

    value: float
    spread: float


def share(one: Timed, other: Timed) -> Ratio:
    """Returns the ratio of the time of `one` to the time of `other`."""
    pairs = zip(one.turns, other.turns, strict=True)
    shares = [statistics.median(its) / statistics.median(theirs) for its, theirs in pairs]
    middle = statistics.median(shares)
    return Ratio(middle, half_quartile_distance(shares) / middle)


@dataclass(frozen=True)
class Measured:
    """Peers that were compared with each other.

    Attributes:
      group: name of the group, such as "2x4 float32".
      ours: the name of t2tp's own entry.
      work: work of a step, in `unit`s.
      unit: FLOP, tokens, examples, bytes; or "" where only time counts.
      timed: the peers that ran.
      absent: for each peer that did not run, the reason.
    """

    group: str
    ours: str
    work: float
    unit: str
    timed: list[Timed]
    absent: dict[str, str]

    @property
    def has_ours(self) -> bool:
        """Whether t2tp itself ran."""
        return any(timed.name == self.ours for timed in self.timed)

    def peak(self) -> float | None:
        """Returns the machine's peak rate in units per second, by its fastest large matmul."""
        rates = [self.work_of(t) / t.seconds for t in self.timed if t.program == PEAK]
        return max(rates, default=None)

    def work_of(self, timed: Timed) -> float:
        """Returns the work of a step of a peer."""
        return timed.facts.get("work", self.work)

    def ratio(self, timed: Timed) -> Ratio | None:
        """Returns the ratio of t2tp's time to a peer's; None for the peak, or without t2tp."""
        ours = next((each for each in self.timed if each.name == self.ours), None)
        return None if ours is None or timed.program == PEAK else share(ours, timed)

    def least(self, timed: Timed) -> Ratio | None:
        """Returns the ratio of the time of `BARE` to a peer's time; None if `BARE` did not run."""
        bare = next((each for each in self.timed if each.program == BARE), None)
        return None if bare is None else share(bare, timed)


@dataclass(frozen=True)
class Results:
    """A run of a case.

    Attributes:
      case: name of the case.
      machine: the result of `hardware.describe`, and how the case was run.
      measured: the groups, in the order of the case.
    """

    case: str
    machine: dict[str, Any]
    measured: list[Measured]

    def with_groups(self, again: Sequence[Measured], machine: Mapping[str, Any]) -> Results:
        """Returns these results with groups replaced by newer ones, and new groups at the end.

        `machine` describes the newer measurement.
        """
        newer = {measured.group: measured for measured in again}
        later = {**self.machine.get("again", {}), **{group: dict(machine) for group in newer}}
        return replace(
            self,
            machine={**self.machine, "again": later},
            measured=[newer.pop(old.group, old) for old in self.measured] + [*newer.values()],
        )

    def save(self, path: Path) -> None:
        """Writes the JSON atomically."""
        write_whole(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Reads a file that `save` has written."""
        stored = json.loads(path.read_text("utf-8"))
        measured = [
            Measured(**{**each, "timed": [Timed(**timed) for timed in each["timed"]]})
            for each in stored["measured"]
        ]
        return cls(stored["case"], stored["machine"], measured)


def load_all(directory: Path) -> dict[str, Results]:
    """Loads the results in a directory, by case."""
    loaded = [Results.load(path) for path in sorted(directory.glob("*.json"))]
    return {results.case: results for results in loaded}


def load_processors(directory: Path) -> dict[str, list[Results]]:
    """Loads the results of all processors, by case; the latest results of a case are first.

    The results of the short suite (`make bench`) are not of a processor.
    """
    paths = [path for path in directory.glob("*/*.json") if path.parent.name != "short"]
    loaded = [Results.load(path) for path in paths]
    loaded = [each for each in loaded if each.machine["size"] == "design"]
    by_case: dict[str, list[Results]] = {case: [] for case in sorted({r.case for r in loaded})}
    for results in sorted(loaded, key=lambda each: each.machine["date"], reverse=True):
        by_case[results.case].append(results)
    return by_case


def write_whole(path: Path, text: str) -> None:
    """Writes or replaces a file atomically."""
    unfinished = path.with_name(path.name + ".tmp")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def half_quartile_distance(values: Sequence[float]) -> float:
    """Returns half the distance between the quartiles; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2
