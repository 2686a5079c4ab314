"""Shows where the time of a training step goes, in t2tp and in plain TensorFlow on one device.

    python benchmarks/profile_step.py [--size=design] [--mesh=1x1] [--dtype=float32] [PEER ...]

TensorFlow's profiler records when each operation begins and ends on which thread. The time of a
step is divided equally among the operations that run at the same moment. If none runs, for instance
while the step starts, the time counts as *between operations*. An operation counts as running
until all of its threads have ended. Collectives mostly wait for other devices, so they count only
if nothing else runs. The parts add up to the step.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from language_model import SIZES
from profile_events import read_events
from suite.turns import HERE

COLLECTIVES = "collectives"
# Part of a step -> pattern. An operation `name:type` belongs to the first part whose pattern
# matches.
PARTS = {
    COLLECTIVES: r":Collective",
    # Scores, softmax and weighted sum, without the projections before and after them.
    "attention": r"attention/attention/|^(gradient_tape/)?attention/",
    # In t2tp's step, XLA compiles only the passes over the logits, so compiled regions belong here.
    "cross-entropy": r"cross_entropy|^CpuExecutable",
    "optimizer": r"adam|beta_power|clip_by_global_norm|global_norm|optimizer",
    "products of matrices": r":.*(MatMul|Einsum)",
    "norms": r"rms_norm",
    "the rest": r"",
}
BETWEEN = "between operations"
# An operation, or a region that XLA has compiled.
_OPERATION = re.compile(r"^[^:]+:_?[A-Z]\w*$|^CpuExecutable::ExecuteAsyncOnStream$")
# These operations only wait for the functions that they call; the functions have their own events.
_CALLERS = re.compile(r":.*(PartitionedCall|While)$")


class Span(NamedTuple):
    """When an operation ran, in picoseconds."""

    begin: int
    end: int
    part: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help="of peers/")
    parser.add_argument("--size", choices=SIZES, default="design")
    parser.add_argument("--mesh", default="1x1", help="devices for the batch x for the weights")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = parser.parse_args()
    data, model = args.mesh.split("x")
    arguments = [f"--size={args.size}", f"--data={data}", f"--model={model}"]
    arguments.append(f"--dtype={args.dtype}")
    peers = args.peers or (("ours", "plain_tf") if args.mesh == "1x1" else ("ours",))
    profiles = {peer: profile(peer, arguments) for peer in peers}
    print("| ms of a step | " + " | ".join(profiles) + " |")
    print("| --- |" + " --- |" * len(profiles))
    for part in (*PARTS, BETWEEN):
        print(f"| {part} | " + " | ".join(_cell(p, part) for p in profiles.values()) + " |")
    totals = (f"{1e3 * sum(p.values()):.1f}" for p in profiles.values())
    print("| together | " + " | ".join(totals) + " |")


def profile(peer: str, arguments: list[str]) -> Counter[str]:
    """Profiles a peer, and returns the seconds of each part of a step.

    Raises:
      RuntimeError: the peer failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        program = HERE / "peers" / f"{peer}.py"
        ended = subprocess.run(
            [sys.executable, program, *arguments, f"--profile={directory}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        if ended.returncode:
            raise RuntimeError(f"{peer} failed: {ended.stderr.strip().splitlines()[-1]}")
        (file,) = Path(directory).rglob("*.xplane.pb")
        steps, spans = read(file)
    seconds: Counter[str] = Counter()
    for step in steps:
        seconds.update(shared_out(step, spans))
    return Counter({part: value / len(steps) for part, value in seconds.items()})


def read(path: Path) -> tuple[list[Span], list[Span]]:
    """Reads the steps and the operations of a profile."""
    events = read_events(path)
    steps = [Span(begin, end, "") for name, begin, end in events if name == "benchmark_step"]
    spans = [
        Span(begin, end, part_of(name))
        for name, begin, end in events
        if _OPERATION.match(name) and not _CALLERS.search(name)
    ]
    return steps, spans


def part_of(operation: str) -> str:
    """Returns the part of a step to which an operation `name:type` belongs."""
    return next(part for part, pattern in PARTS.items() if re.search(pattern, operation))


def shared_out(step: Span, spans: list[Span]) -> Counter[str]:
    """Returns the seconds of each part of a step."""
    picoseconds: Counter[str] = Counter()
    running: Counter[str] = Counter()
    before = step.begin
    for moment, part, change in (*_moments(step, spans), (step.end, BETWEEN, 0)):
        sharing = {p: n for p, n in running.items() if p != COLLECTIVES} or running
        for each, number in sharing.items():
            picoseconds[each] += (moment - before) * number / sum(sharing.values())
        if not sharing:
            picoseconds[BETWEEN] += moment - before
        running[part] += change
        running += Counter()  # removes the parts of which no operation runs now
        before = moment
    return Counter({part: value / 1e12 for part, value in picoseconds.items()})


def _moments(step: Span, spans: list[Span]) -> Iterator[tuple[int, str, int]]:
    """Yields when operations of a step begin (+1) and end (-1), in order of time."""
    moments = []
    for span in spans:
        begin, end = max(span.begin, step.begin), min(span.end, step.end)
        if begin < end:
            moments += [(begin, span.part, 1), (end, span.part, -1)]
    yield from sorted(moments)


def _cell(seconds: Counter[str], part: str) -> str:
    return f"{1e3 * seconds[part]:.1f} ({seconds[part] / sum(seconds.values()):.0%})"


if __name__ == "__main__":
    main()
