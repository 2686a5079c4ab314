"""Charts of a plan's page, in SVG: stacked bars, points and lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# Pixels.
_WIDTH, _LABEL, _RIGHT = 1140, 250, 90
_BAR, _STEP = 24, 34
_HEIGHT, _LEFT, _BOTTOM, _TOP = 300, 90, 40, 14


@dataclass(frozen=True)
class Bar:
    """A stacked bar.

    Attributes:
      label: at its left.
      parts: names and sizes, from left to right.
      total: in words, at its right.
    """

    label: str
    parts: Sequence[tuple[str, float]]
    total: str


def stacked_bars(
    bars: Sequence[Bar],
    colors: Mapping[str, str],
    words: Callable[[float], str],
    limit: float = 0.0,
    limit_words: str = "",
) -> str:
    """Draws horizontal bars on one scale.

    Args:
      bars: from top to bottom.
      colors: by the names of the parts.
      words: formats a size, for what a part says when it is pointed at.
      limit: a line that the bars should not reach; 0: none.
      limit_words: what the line is.
    """
    longest = max([limit, *(sum(size for _, size in bar.parts) for bar in bars)]) or 1.0
    scale = (_WIDTH - _LABEL - _RIGHT) / longest
    height = _STEP * len(bars) + (26 if limit else 6)
    lines = []
    for row, bar in enumerate(bars):
        y, x = row * _STEP + 4, float(_LABEL)
        lines.append(_text(_LABEL - 8, y + _BAR / 2 + 4, bar.label, "end"))
        for name, size in bar.parts:
            width = max(0.0, size * scale)
            lines.append(
                f'<g><title>{escape(name)}: {escape(words(size))}</title><rect x="{x:.1f}"'
                f' y="{y}" width="{width:.2f}" height="{_BAR}" fill="{colors[name]}"/></g>'
            )
            x += width
        lines.append(_text(x + 6, y + _BAR / 2 + 4, bar.total))
    if limit:
        x = _LABEL + limit * scale
        bottom = _STEP * len(bars) + 4
        lines.append(f'<path class="limit" d="M{x:.1f} 0V{bottom}"/>')
        lines.append(_text(x, bottom + 14, limit_words, "end"))
    return _svg(height, lines)


@dataclass(frozen=True)
class Dot:
    """A point of a chart.

    Attributes:
      x: position.
      y: position.
      words: what it says when it is pointed at.
      is_chosen: whether a line joins it with the others of its kind.
    """

    x: float
    y: float
    words: str
    is_chosen: bool = True


def points(
    dots: Sequence[Dot],
    x_words: Callable[[float], str],
    y_words: Callable[[float], str],
    titles: tuple[str, str],
    ideal: Sequence[tuple[float, float]] = (),
    x_unit: float = 1.0,
) -> str:
    """Draws points, those that are chosen joined by a line, on scales that begin at 0.

    Args:
      dots: the points.
      x_words: formats a position for the axis.
      y_words: likewise.
      titles: of the axes.
      ideal: a dashed line to compare with.
      x_unit: whose round numbers the axis has.
    """
    right = max([dot.x for dot in dots] + [x for x, _ in ideal]) * 1.05 or 1.0
    top = max([dot.y for dot in dots] + [y for _, y in ideal]) * 1.08 or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = (_WIDTH - _LEFT - 20) * x / right
        return _LEFT + across, _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - y / top)

    lines = []
    for y in _ticks(top):
        _, at = place(0, y)
        lines.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - 20}"/>')
        lines.append(_text(_LEFT - 6, at + 4, y_words(y), "end"))
    for x in (x_unit * tick for tick in _ticks(right / x_unit)):
        at, bottom = place(x, 0)
        lines.append(_text(at, bottom + 16, x_words(x), "middle"))
    lines.append(_text(_WIDTH - 20, _HEIGHT - 6, titles[0], "end"))
    lines.append(_text(4, _TOP - 3, titles[1]))
    lines.append(_path("ideal", [place(*each) for each in ideal]))
    chosen = sorted((dot for dot in dots if dot.is_chosen), key=lambda dot: dot.x)
    lines.append(_path("front", [place(dot.x, dot.y) for dot in chosen]))
    for dot in dots:
        x, y = place(dot.x, dot.y)
        kind = "chosen" if dot.is_chosen else "other"
        lines.append(
            f'<g><title>{escape(dot.words)}</title><circle class="{kind}" cx="{x:.1f}"'
            f' cy="{y:.1f}" r="6"/></g>'
        )
    return _svg(_HEIGHT, lines)


def legend(colors: Mapping[str, str]) -> str:
    """Names the colors of stacked bars."""
    items = "".join(
        f'<span><i style="background:{color}"></i>{escape(name)}</span>'
        for name, color in colors.items()
    )
    return f'<p class="legend">{items}</p>'


def _ticks(most: float) -> list[float]:
    """Returns round numbers from 0 to a number."""
    step = 10 ** math.floor(math.log10(most))
    step = next(step * part for part in (0.1, 0.2, 0.5, 1, 2) if most / (step * part) <= 7)
    return [step * i for i in range(math.floor(most / step) + 1)]


def _path(kind: str, places: Sequence[tuple[float, float]]) -> str:
    if len(places) < 2:
        return ""
    return f'<path class="{kind}" d="M{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(height: float, lines: Sequence[str]) -> str:
    return f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(lines)}</svg>'
