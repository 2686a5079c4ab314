"""Profiles when gradients are summed over processes during a training step.

    python benchmarks/overlap.py [--size=wide] [--processes=2]

TensorFlow's profiler records when each operation begins and ends. The table shows when each sum of
gradients ran in a step of the first process, and the fraction of this time in which the process
also computed. In the remaining time, the step waits.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from language_model import SIZES
from profile_events import read_events
from suite.turns import HERE

_SUM = re.compile(r":CollectiveReduceV2$")
_BACKWARD = re.compile(r"/gradients/.*:\w*(MatMul|Einsum)\w*$")
# An operation of TensorFlow that computes, or a region that XLA has compiled.
_COMPUTES = re.compile(r"^[^:]+:_?[A-Z]\w*$|^CpuExecutable::ExecuteAsyncOnStream$")
_WAITS = re.compile(r":.*(PartitionedCall|While|Collective\w+)$")


class Span(NamedTuple):
    """When an operation ran, in milliseconds of a step."""

    begin: float
    end: float
    name: str


def main() -> None:
    """Profiles a few steps and prints the sums of the last one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="wide")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        ended = subprocess.run(
            [
                *(sys.executable, HERE / "peers" / "ours.py", f"--size={args.size}"),
                *(f"--data={args.processes}", f"--processes={args.processes}"),
                f"--profile={directory}",
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        if ended.returncode:
            sys.exit(f"The step failed: {ended.stderr.strip().splitlines()[-1]}")
        (file,) = (Path(directory) / "0").rglob("*.xplane.pb")
        length, spans = last_step(file)
    report(length, spans)


def last_step(path: Path) -> tuple[float, list[Span]]:
    """Returns the length of the last step of a profile, and its operations."""
    events = read_events(path)
    first, last = max((b, e) for name, b, e in events if name == "benchmark_step")
    spans = [
        Span((begin - first) / 1e9, (end - first) / 1e9, name)
        for name, begin, end in events
        if first <= begin and end <= last
    ]
    return (last - first) / 1e9, sorted(spans)


def report(length: float, spans: Sequence[Span]) -> None:
    """Prints a table with a row for each sum of gradients."""
    backward = [span for span in spans if _BACKWARD.search(span.name)]
    begin, end = min(s.begin for s in backward), max(s.end for s in backward)
    print(
        f"A step of {length:.0f} ms; products of the backward pass from {begin:.0f} to {end:.0f}."
    )
    print()
    print("| operation that needs the sum | from | to | meanwhile computing |")
    print("| -- | -- | -- | -- |")
    computing = [s for s in spans if _COMPUTES.match(s.name) and not _WAITS.search(s.name)]
    for each in (s for s in spans if _SUM.search(s.name)):
        share = covered(each, computing) / (each.end - each.begin)
        name = each.name.rpartition("/Collective")[0]
        print(f"| `{name}` | {each.begin:.0f} ms | {each.end:.0f} ms | {share:.0%} |")


def covered(span: Span, others: Sequence[Span]) -> float:
    """Returns how long at least one of `others` ran during a span; they are sorted by `begin`."""
    total, until = 0.0, span.begin
    for other in others:
        begin, end = max(other.begin, until), min(other.end, span.end)
        if begin < end:
            total += end - begin
            until = end
    return total


if __name__ == "__main__":
    main()
