"""Compares predicted with measured seconds and memory of training steps, on this machine.

    t2tp_calibrate --output=this_machine.toml
    python benchmarks/planning.py --cluster=this_machine.toml [--only=lm] [--results=FILE]

Measures the cases of `planning_cases.py` that are not in FILE, adds them to FILE, and prints the
table. With --again, it measures all cases; with --no-measure, it measures none; with --no-memory,
only seconds. A shared machine is slower at times, so --turns=3 measures the cases in turns and
keeps the shortest step of each.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from planning_cases import CASES, Case

HERE = Path(__file__).parent
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
# Returns freed blocks to the system at once, so that the peak has only memory in use. This is slow,
# so times are measured without it.
_GIVES_BACK = {
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_ARENA_MAX": "2",
}
# Layouts whose measured seconds differ by more than this must be in the predicted order.
_APART = 1.15


def main() -> int:
    args = _arguments()
    results = json.loads(args.results.read_text()) if args.results.exists() else {}
    chosen = [(i, case) for i, case in enumerate(CASES) if args.only in case.name]
    missing = [each for each in chosen if args.again or each[1].name not in results]
    for turn in range(args.turns if args.measure else 0):
        for number, case in missing:
            measured = _measured(number, case, args.memory and not turn)
            best = results[case.name] if turn else measured
            results[case.name] = best | measured if measured["seconds"] < best["seconds"] else best
            args.results.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{case.name}: {results[case.name]['seconds']:.3f} s", file=sys.stderr)
    if args.measure and not Path(args.cluster).exists() and args.cluster.endswith(".toml"):
        return 0
    _report([case for _, case in chosen if case.name in results], results, args.cluster)
    return 0


def _measured(number: int, case: Case, memory: bool) -> dict:
    """Returns the shortest step of a run and, if `memory`, the peak memory of another run."""
    timed = _run(number, case, "seconds", {})
    figures = {
        "seconds": min(timed[0]["seconds"]),
        "all_seconds": [each["seconds"] for each in timed],
    }
    if memory:
        held = _run(number, case, "memory", _GIVES_BACK)
        figures |= {name: max(each[name] for each in held) for name in ("variables", "held")}
    return figures


def _run(number: int, case: Case, what: str, env: dict[str, str]) -> list[dict]:
    """Runs a case's processes; returns what each has measured."""
    from t2tp.processes.rendezvous import free_port

    cores = len(os.sched_getaffinity(0))
    threads = {"TF_NUM_INTRAOP_THREADS": str(max(1, cores // case.processes))}
    env = os.environ | _QUIET | env | (threads if case.processes > 1 else {})
    coordinator = f"localhost:{free_port()}"
    command = [sys.executable, str(HERE / "planning_worker.py"), str(number), what]
    started = [
        subprocess.Popen(
            [*command, str(rank), coordinator], stdout=subprocess.PIPE, text=True, env=env
        )
        for rank in range(case.processes)
    ]
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit(f"{case.name}: a process failed.")
    return [json.loads(text.splitlines()[-1]) for text in said]


def _report(cases: Sequence[Case], results: dict, cluster: str) -> None:
    from t2tp.planner import ClusterFile

    loaded = ClusterFile.load(cluster)
    print("| case | seconds | predicted | interval | error | memory, MB | predicted | error |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rows = [_row(case, results[case.name], loaded) for case in cases]
    errors = sorted(abs(row["predicted"] / row["seconds"] - 1) for row in rows)
    pairs = [
        (a, b)
        for a in rows
        for b in rows
        if a["model"] == b["model"] and a["seconds"] > _APART * b["seconds"]
    ]
    right = sum(a["predicted"] > b["predicted"] for a, b in pairs)
    print()
    print(
        f"{len(rows)} steps: median error {statistics.median(errors):.1%}, worst {errors[-1]:.1%}"
    )
    print(f"pairs that differ by more than 15 %: {right} of {len(pairs)} in the right order")
    fits = [row["fits"] for row in rows if row["fits"] is not None]
    if fits:
        print(f"memory: {sum(fits)} of {len(fits)} within 5 % or 30 MB")


def _row(case: Case, measured: dict, cluster) -> dict:
    plan = case.request.plan(dataclasses.replace(cluster, processes=case.processes))
    predicted, seconds = plan.seconds, measured["seconds"]
    own = (plan.memory_total - plan.memory["reserved"]) * (plan.devices // case.processes)
    low, high = plan.interval
    memory, fits = "| | |", None
    if "held" in measured:
        held = measured["variables"] + measured["held"]
        memory = f"{held / 1e6:.0f} | {own / 1e6:.0f} | {own / held - 1:+.0%} |"
        fits = abs(own - held) < max(0.05 * held, 30e6)
    print(
        f"| {case.name} | {seconds:.3f} | {predicted:.3f} | {low:.3f} to {high:.3f} |"
        f" {predicted / seconds - 1:+.0%} | {memory}",
        flush=True,
    )
    return {"model": case.model, "seconds": seconds, "predicted": predicted, "fits": fits}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", default="this_machine.toml")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--results", type=Path, default=HERE / "planning.json")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--measure", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
