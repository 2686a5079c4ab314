"""The ratios that t2tp aims at, compared with the measured ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suite.results import Ratio, Results


@dataclass(frozen=True)
class Target:
    """A ratio of times that t2tp should reach.

    Attributes:
      what: description of the comparison.
      case: case that measures it.
      group: group of the case.
      others: peers; t2tp's time is divided by the time of the fastest one.
      most: largest ratio that meets the target.
      is_growth: whether the target limits how much longer a larger mesh takes than the first mesh;
        the measured ratio is inverted for this.
    """

    what: str
    case: str
    group: str
    others: tuple[str, ...]
    most: float
    is_growth: bool = False


def _step(what: str, group: str, most: float, *others: str) -> Target:
    return Target(what, "training_step", group, others, most)


def _decoding(mesh: str, batch: int) -> Target:
    what = f"decoding on {mesh}, batch {batch}, compared with transformers"
    return Target(what, "decoding", f"{mesh}, batch {batch}", ("transformers (PyTorch)",), 1.0)


def _tracing(mesh: str, smallest: str, group: str) -> Target:
    what = f"tracing {mesh} compared with {smallest}"
    return Target(what, "tracing", group, (f"t2tp on {mesh}",), 1.3, True)


TARGETS = (
    _step(
        "one device compared with plain TensorFlow's best",
        "1x1 float32",
        1.05,
        "plain TensorFlow",
        "plain TensorFlow, XLA",
    ),
    _step("one device compared with JAX", "1x1 float32", 0.65, "JAX, jit"),
    _step("one device, bfloat16 compared with float32", "1x1 bfloat16", 0.75, "t2tp, float32"),
    _step("2x4 compared with JAX's GSPMD", "2x4 float32", 0.65, "JAX, GSPMD"),
    _step("2x4 compared with mesh-tensorflow", "2x4 float32", 0.75, "mesh-tensorflow"),
    _step("2x4 compared with one device", "2x4 float32", 1.25, "t2tp, one device"),
    Target(
        "tracing 1x64 compared with 1x2", "tracing", "trace, one axis", ("t2tp on 1x64",), 1.3, True
    ),
    Target(
        "tracing 8x8 compared with 2x2", "tracing", "trace, two axes", ("t2tp on 8x8",), 1.3, True
    ),
    *(_decoding(mesh, batch) for mesh in ("1x1", "2x2") for batch in (1, 16)),
)


@dataclass(frozen=True)
class Outcome:
    """The measured result of a target.

    Attributes:
      ratio: t2tp's time divided by the peer's.
      least: the time of `suite.results.BARE` divided by the same peer's; None if it did not run.
    """

    ratio: Ratio
    least: Ratio | None = None


def measured(target: Target, results: Mapping[str, Sequence[Results]]) -> Outcome | None:
    """Returns the outcome of a target on the worst processor; None if it was not measured."""
    outcomes = [
        Outcome(ratio, group.least(timed))
        for run in results.get(target.case, ())
        for group in run.measured
        if group.group == target.group
        for timed in group.timed
        if timed.name in target.others and (ratio := group.ratio(timed)) is not None
    ]
    if not outcomes:
        return None
    if target.is_growth:
        outcomes = [Outcome(Ratio(1 / each.ratio.value, each.ratio.spread)) for each in outcomes]
    return max(outcomes, key=lambda each: each.ratio.value)


def table(results: Mapping[str, Sequence[Results]]) -> str:
    """Returns each target and its outcome, in Markdown."""
    lines = ["| | target | measured | | least |", "|" + " --- |" * 5]
    for target in TARGETS:
        outcome = measured(target, results)
        figure, verdict, least = "", "not measured", ""
        if outcome is not None:
            figure = _figure(outcome.ratio)
            verdict = "met" if outcome.ratio.value <= target.most else "not met"
            least = _figure(outcome.least) if outcome.least else ""
        lines.append(f"| {target.what} | ≤ {target.most:.2f} | {figure} | {verdict} | {least} |")
    return "\n".join(lines)


def _figure(ratio: Ratio) -> str:
    return f"{ratio.value:.2f} ± {ratio.value * ratio.spread:.2f}"
