"""The case `learning` on docs/benchmarks.md: a table, and bits per byte over seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cases.learning import LEARNERS, OURS, STORED


def load(results: Path) -> dict[str, Any]:
    """Returns the latest results of any processor; {} if there are none."""
    stored = [json.loads(path.read_text("utf-8")) for path in results.glob(f"*/{STORED}")]
    complete = [each for each in stored if each["machine"]["size"] == "design"]
    return max(complete, key=lambda each: each["machine"]["date"], default={})


def points(learner: dict[str, Any], run: dict[str, Any]) -> list[tuple[float, float]]:
    """Returns the seconds and the bits per byte of each evaluation of a run."""
    return [(steps * learner["step"], bits) for steps, bits in run["curve"]]


def table(stored: dict[str, Any]) -> str:
    """Returns a table with a row for each learner."""
    learners = {name: stored["learners"][name] for name in LEARNERS if name in stored["learners"]}
    ours = [name for name in OURS if name in learners]
    heads = ["", "rate", "ms per step", "first step, s", "steps", "seconds", "bits per byte"]
    heads += [f"{name} / peer" for name in ours]
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for name, learner in learners.items():
        run = learner["runs"][-1]
        seconds, bits = points(learner, run)[-1]
        cells = [name, f"{run['rate']:g}", f"{1e3 * learner['step']:.0f}"]
        cells += [f"{learner['first_step']:.0f}", f"{run['curve'][-1][0]}", f"{seconds:.0f}"]
        cells.append(f"{bits:.3f}")
        for our_name in ours:
            reached = seconds_to_reach(learners[our_name], bits)
            cells.append(f"{reached / seconds:.2f}" if reached else "not reached")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def seconds_to_reach(learner: dict[str, Any], bits: float) -> float | None:
    """Returns the least seconds after which any run of a learner has at most `bits`."""
    evaluations = [point for run in learner["runs"] for point in points(learner, run)]
    return min((seconds for seconds, each in evaluations if each <= bits), default=None)


def draw(stored: dict[str, Any], path: Path) -> None:
    """Draws each learner's last run as a curve, and the ends of its shorter runs as points."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, learner in stored["learners"].items():
        run = learner["runs"][-1]
        style = "-" if name in OURS else "--"
        (line,) = axes.plot(*zip(*points(learner, run), strict=True), style, label=name)
        ends = [points(learner, r)[-1] for r in learner["runs"] if r["rate"] == run["rate"]]
        axes.plot(*zip(*ends, strict=True), "o", color=line.get_color())
    axes.set_xlabel("processor seconds of training")
    axes.set_ylabel("bits per byte, validation")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
