"""Writes docs/benchmarks.md and its chart from the stored results.

    python benchmarks/report.py

The prose is in benchmarks/page.md; in it, `{{table CASE}}` is a case's table, `{{conditions CASE}}`
its conditions, `{{headline}}` the summary, `{{targets}}` the targets, `{{chart}}` the chart and
`{{learning}}` the results of the case `learning`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from suite import chart, curves, targets
from suite.results import Ratio, Results, load_processors, write_whole
from suite.tables import table
from suite.turns import HERE

RESULTS = HERE / "results"
TEMPLATE = HERE / "page.md"
PAGE = HERE.parent / "docs" / "benchmarks.md"
CHART = PAGE.with_name("benchmarks.png")
LEARNING = PAGE.with_name("images") / "learning.png"


def main() -> None:
    results = load_processors(RESULTS)
    write_whole(PAGE, page(TEMPLATE.read_text("utf-8"), results))
    if results:
        chart.draw([runs[0] for runs in results.values()], CHART)
    if learned := curves.load(RESULTS):
        curves.draw(learned, LEARNING)


def page(template: str, results: Mapping[str, Sequence[Results]]) -> str:
    """Returns the page.

    Args:
      template: prose with placeholders.
      results: for each case, its results on all kinds of processors, the latest first.

    Raises:
      ValueError: a placeholder is unknown.
    """

    def filled(match: re.Match[str]) -> str:
        what, _, case = match.group(1).partition(" ")
        if what == "headline":
            return headline(results)
        if what == "targets":
            return targets.table(results)
        if what == "chart":
            return f"![t2tp's time as a share of its peers']({CHART.name})" if results else ""
        if what == "learning":
            return learning()
        if what not in ("table", "conditions"):
            raise ValueError(f"{TEMPLATE.name}: {match.group()} is none of table, conditions, ...")
        if case not in results:
            return _missing(case) if what == "table" else ""
        latest = results[case][0]
        return table(latest.measured) if what == "table" else conditions(latest)

    return formatted(re.sub(r"\{\{(.+?)\}\}", filled, template))


def learning() -> str:
    """Returns the table and the chart of the case `learning`."""
    stored = curves.load(RESULTS)
    if not stored:
        return _missing("learning")
    machine = stored["machine"]
    when = f"{machine['date']} UTC, one thread of {machine['processor']}."
    image = f"![Bits per byte over seconds](images/{LEARNING.name})"
    return f"{curves.table(stored)}\n\n{when}\n\n{image}"


def formatted(text: str) -> str:
    """Returns the text, wrapped like the other pages of docs/ (.mdformat.toml)."""
    command = [sys.executable, "-m", "mdformat", "-"]
    ended = subprocess.run(
        command, cwd=HERE.parent, input=text, capture_output=True, text=True, check=True
    )
    return ended.stdout


def _missing(case: str) -> str:
    return f"Not measured yet: `python benchmarks/run.py --suite=full --case={case}`"


def headline(results: Mapping[str, Sequence[Results]]) -> str:
    """Returns a table with a row for each group: the ratio to the group's fastest peer.

    If several processors were measured, the row has the range of their ratios, and names the peer
    of the largest ratio.
    """
    lines = ["| | | fastest peer | t2tp / peer |", "| --- | --- | --- | --- |"]
    for case, runs in results.items():
        for group in dict.fromkeys(measured.group for run in runs for measured in run.measured):
            ratios = [largest for run in runs if (largest := _largest_ratio(run, group))]
            if ratios:
                least, most = (pick(ratios, key=lambda each: each[0].value) for pick in (min, max))
                figure = f"{most[0].value:.2f} ± {most[0].value * most[0].spread:.2f}"
                if len(ratios) > 1:
                    figure = f"{least[0].value:.2f} to {figure} on {len(ratios)} processors"
                lines.append(f"| {case} | {group} | {most[1]} | {figure} |")
    return "\n".join(lines) if len(lines) > 2 else "Not measured yet: `make bench-full`"


def _largest_ratio(run: Results, group: str) -> tuple[Ratio, str] | None:
    """Returns the ratio to a group's fastest peer on one processor, and the peer's name."""
    ratios = [
        (ratio, timed.name)
        for measured in run.measured
        if measured.group == group
        for timed in measured.timed
        if timed.is_other and (ratio := measured.ratio(timed)) is not None
    ]
    return max(ratios, key=lambda each: each[0].value, default=None)


def conditions(results: Results) -> str:
    """Describes where, when and how a case was measured."""
    machine = results.machine
    versions = sorted(
        {
            version
            for measured in results.measured
            for timed in measured.timed
            if (version := timed.facts.get("version"))
        }
    )
    sets = ", ".join(machine["instruction_sets"])
    again = "".join(f" {group}: {_how(m)}." for group, m in machine.get("again", {}).items())
    return (
        f"{_how(machine)}; {machine['cores']} cores of {machine['processor']} ({sets}),"
        f" {machine['memory_gb']} GB; Python {machine['python']}, {', '.join(versions)}.{again}"
    )


def _how(machine: Mapping[str, Any]) -> str:
    """Describes when and how often a case was measured."""
    return (
        f"{machine['date']} UTC, commit {machine['commit']}, {machine['turns']} turns of"
        f" {machine['steps']} steps, load before: {machine['load_before']:.1f}"
    )


if __name__ == "__main__":
    main()
