"""Draws the chart of docs/benchmarks.md: ratios of t2tp's time to the time of each peer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from suite.results import Results

_INCHES_A_ROW = 0.18


def draw(results: Iterable[Results], path: Path) -> None:
    """Draws the ratio and its spread for each peer of each group; left of the line, t2tp is faster.

    Args:
      results: results of the cases, in order.
      path: path of the PNG.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = []
    for run in results:
        for measured in run.measured:
            for timed in measured.timed:
                ratio = measured.ratio(timed) if timed.is_other else None
                if ratio is not None:
                    rows.append((f"{run.case}, {measured.group}: {timed.name}", ratio))
    figure, axes = plt.subplots(figsize=(9, 1 + _INCHES_A_ROW * len(rows)))
    for row, (_, ratio) in enumerate(rows):
        color = "tab:green" if ratio.value <= 1 else "tab:red"
        axes.errorbar(ratio.value, row, xerr=ratio.value * ratio.spread, fmt="o", color=color, ms=4)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=7)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("t2tp's time / the peer's time (left of the line t2tp is faster)")
    axes.grid(axis="x", which="both", alpha=0.3)
    figure.tight_layout()
    unfinished = path.with_name(path.name + ".tmp")
    figure.savefig(unfinished, format="png", dpi=90, bbox_inches="tight")
    plt.close(figure)
    unfinished.replace(path)
