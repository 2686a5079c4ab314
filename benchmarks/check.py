"""Compares ratios with a stored baseline; fails if t2tp has lost against a peer.

    python benchmarks/check.py [DIRECTORY]           compares the results of `make bench`
    python benchmarks/check.py --store [DIRECTORY]   makes them the baseline

The times of t2tp and its peers change from day to day, but their ratios do not, because the
programs are measured alternately on one machine. The check fails if a ratio has grown by more than
15 % plus the spreads of both measurements. It also fails if a peer of the baseline is absent from a
measured group, because this could hide a loss.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from suite.results import Ratio, Results, load_all, write_whole
from suite.turns import HERE

BASELINE = HERE / "baseline.json"
TOLERANCE = 0.15


class Name(NamedTuple):
    """The case, the group and the peer of a ratio."""

    case: str
    group: str
    peer: str

    def __str__(self) -> str:
        return ", ".join(self)


@dataclass(frozen=True)
class Change:
    """A ratio in the baseline and in the new results.

    Attributes:
      name: case, group and peer of the ratio.
      was: ratio in the baseline.
      now: new ratio; None if it was not measured.
      is_gone: whether the group was measured without this peer.
    """

    name: Name
    was: Ratio
    now: Ratio | None
    is_gone: bool = False

    @property
    def allowed(self) -> float:
        """The largest new ratio that does not count as a loss."""
        spread = self.was.spread + (self.now.spread if self.now else 0.0)
        return self.was.value * (1 + TOLERANCE + spread)

    @property
    def is_loss(self) -> bool:
        """Whether t2tp has lost against this peer."""
        return self.now is not None and self.now.value > self.allowed


def ratios_of(results: Mapping[str, Results]) -> dict[Name, Ratio]:
    """Returns the ratio of t2tp's time to the time of each peer."""
    ratios = {}
    for case, run in results.items():
        for measured in run.measured:
            for timed in measured.timed:
                ratio = measured.ratio(timed) if timed.is_other else None
                if ratio is not None:
                    ratios[Name(case, measured.group, timed.name)] = ratio
    return ratios


def compare(baseline: Mapping[Name, Ratio], now: Mapping[Name, Ratio]) -> list[Change]:
    """Pairs each ratio of the baseline with the new one."""
    groups = {name[:2] for name in now}
    return [
        Change(name, was, now.get(name), name not in now and name[:2] in groups)
        for name, was in baseline.items()
    ]


def load(path: Path) -> dict[Name, Ratio]:
    """Reads a baseline.

    Raises:
      FileNotFoundError: there is no baseline.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path.name} to compare with: `make bench`, and if its figures are good,"
            " `python benchmarks/check.py --store`"
        )
    stored = json.loads(path.read_text("utf-8"))
    return {Name(**each["name"]): Ratio(**each["ratio"]) for each in stored}


def store(path: Path, ratios: Mapping[Name, Ratio]) -> None:
    """Writes a baseline."""
    stored = [{"name": n._asdict(), "ratio": asdict(ratio)} for n, ratio in ratios.items()]
    write_whole(path, json.dumps(stored, indent=1) + "\n")


def report(changes: list[Change]) -> str:
    """Returns a line for each ratio."""
    lines = []
    for change in changes:
        if change.now is None:
            verdict = "GONE" if change.is_gone else "not measured"
            lines.append(f"{verdict:12}  {change.name} (was {change.was.value:.2f})")
        else:
            verdict = "LOST" if change.is_loss else "ok"
            lines.append(
                f"{verdict:12}  {change.name}: {change.was.value:.2f} -> {change.now.value:.2f}"
                f" (allowed {change.allowed:.2f})"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, nargs="?", default=HERE / "results" / "short")
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    args = parser.parse_args()
    now = ratios_of(load_all(args.directory))
    if not now:
        print(f"no ratios in {args.directory}: `make bench` measures them", file=sys.stderr)
        return 2
    if args.store:
        store(args.baseline, now)
        print(f"{len(now)} ratios are the baseline now")
        return 0
    try:
        changes = compare(load(args.baseline), now)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    print(report(changes))
    if all(change.now is None and not change.is_gone for change in changes):
        print(f"{args.directory} has none of the ratios of the baseline", file=sys.stderr)
        return 2
    return 1 if any(change.is_loss or change.is_gone for change in changes) else 0


if __name__ == "__main__":
    sys.exit(main())
