"""Runs benchmarks: t2tp compared with its peers, in turns, on this machine.

    python benchmarks/run.py [--suite=short|full] [--case=NAME ...] [--output=DIRECTORY]

Prints a table for each case, and stores all repetitions of a case in its JSON file. `--group`
measures a disturbed group again and replaces it in the file.
`--size=tiny --turns=1 --steps=1 --output=/tmp/tried` checks that everything runs.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from cases.group import Group
from suite import hardware, suites
from suite.results import Measured, Results, Timed
from suite.tables import table
from suite.turns import HERE, take_turns

RESULTS = HERE / "results"


def main() -> int:
    args = _arguments()
    # Peers have their own sessions and do not receive this signal: exiting ends them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    suite = suites.SUITES[args.suite]
    # docs/benchmarks.md shows the results of the full suite on each kind of processor.
    own = hardware.directory_of(hardware.describe()) if args.suite == "full" else "short"
    directory = args.output or RESULTS / own
    directory.mkdir(parents=True, exist_ok=True)
    unknown = set(args.case or ()) - {*suite, *suites.TRAINING}
    if unknown:
        cases = ", ".join([*suite, *suites.TRAINING])
        print(f"no case {', '.join(unknown)} in {args.suite}: {cases}", file=sys.stderr)
        return 2
    good = True
    for case in args.case or suite:
        if case in suites.TRAINING:
            good = suites.TRAINING[case](directory, args.size) and good
            continue
        machine = hardware.describe()
        began = time.monotonic()
        groups = [g for g in suite[case](args.size) if args.group in (None, g.name)]
        measured = [_measured(case, g, args.turns, args.steps) for g in groups]
        machine |= {"size": args.size, "turns": args.turns, "steps": args.steps}
        machine["minutes"] = round((time.monotonic() - began) / 60, 1)
        path = directory / f"{case}.json"
        results = Results(case, machine, measured)
        if args.group and path.exists():
            results = Results.load(path).with_groups(measured, machine)
        results.save(path)
        print(f"\n{case} ({machine['minutes']} minutes; {path})\n\n{table(measured)}", flush=True)
        good = good and all(each.has_ours for each in measured)
    return 0 if good else 1


def _measured(case: str, group: Group, turns: int, steps: int) -> Measured:
    timed, absent = take_turns(group.peers, turns, steps)
    for name, reason in absent.items():
        print(f"{case}, {group.name}: {name} is absent: {reason}", file=sys.stderr, flush=True)
    our_name = group.peers[0].name
    return Measured(
        group.name,
        our_name,
        group.work,
        group.unit,
        [Timed.from_peer(peer) for peer in timed],
        absent,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", choices=suites.SUITES, default="short")
    parser.add_argument("--case", action="append", help="default: all of the suite")
    parser.add_argument("--group", help="only this one of the case, as in '1x1 float32'")
    parser.add_argument("--size", choices=suites.SIZES, default="design")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="in a turn")
    parser.add_argument("--output", type=Path, help="directory of the JSON files")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
