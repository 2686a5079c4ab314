"""Charts of a plan's page: stacked bars in HTML, whose labels wrap, and a scatter chart in SVG."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# Pixels.
_WIDTH, _HEIGHT = 1140, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 40, 30, 46
# Least range of an axis, relative to its largest value, so that labels of ticks differ.
_LEAST_RANGE = 0.08
_MOST_TICKS = 7


@dataclass(frozen=True)
class Bar:
    """A stacked bar.

    Attributes:
      label: text to the left.
      parts: names and sizes of the parts, from left to right.
      total: text to the right.
    """

    label: str
    parts: Sequence[tuple[str, float]]
    total: str


def stacked_bars(
    bars: Sequence[Bar], colors: Mapping[str, str], words: Callable[[float], str], limit: float = 0
) -> str:
    """Draws a legend, and horizontal bars on one scale, from top to bottom.

    `colors` has the colors by the names of the parts. A line at the size `limit` crosses all bars.
    """
    used = {name for bar in bars for name, size in bar.parts if size > 0}
    legend = "".join(
        f'<span><i style="background:{color}"></i>{escape(name)}</span>'
        for name, color in colors.items()
        if name in used
    )
    longest = max([limit, *(sum(size for _, size in bar.parts) for bar in bars)]) or 1.0
    line = f'<b style="left:{100 * limit / longest:.2f}%"></b>' if limit else ""
    rows = []
    for bar in bars:
        parts = "".join(
            f'<i title="{escape(name)}: {escape(words(size))}"'
            f' style="width:{100 * size / longest:.3f}%;background:{colors[name]}"></i>'
            for name, size in bar.parts
            if size > 0
        )
        rows.append(
            f'<span class="label">{escape(bar.label)}</span><div class="track">{parts}{line}</div>'
            f"<span>{escape(bar.total)}</span>"
        )
    return f'<p class="legend">{legend}</p><div class="bars">{"".join(rows)}</div>'


@dataclass(frozen=True)
class Dot:
    """A point of a scatter chart.

    Attributes:
      words: text that is shown when the mouse is on the point.
      is_chosen: whether a line connects it with the other chosen points.
    """

    x: float
    y: float
    words: str
    is_chosen: bool = True


def scatter(
    dots: Sequence[Dot],
    titles: tuple[str, str],
    x_words: Callable[[float], str],
    y_words: Callable[[float], str],
) -> str:
    """Draws points, and two axes that cover all points.

    `titles` are the titles of the axes. `x_words` and `y_words` format the numbers on the axes.
    """
    x_axis, y_axis = _axis([dot.x for dot in dots]), _axis([dot.y for dot in dots])
    bottom = _HEIGHT - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_axis[0]) / (x_axis[1] - x_axis[0])
        up = (y - y_axis[0]) / (y_axis[1] - y_axis[0])
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * across, bottom - (bottom - _TOP) * up

    lines = [_text(_WIDTH - _RIGHT, _HEIGHT - 6, titles[0], "end"), _text(4, 14, titles[1])]
    for y in _ticks(*y_axis):
        _, at = place(x_axis[0], y)
        lines.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>')
        lines.append(_text(_LEFT - 6, at + 4, y_words(y), "end"))
    for x in _ticks(*x_axis):
        at, _ = place(x, y_axis[0])
        lines.append(f'<path class="grid" d="M{at:.1f} {_TOP}V{bottom}"/>')
        lines.append(_text(at, bottom + 16, x_words(x), "middle"))
    chosen = sorted((dot for dot in dots if dot.is_chosen), key=lambda dot: dot.x)
    if len(chosen) > 1:
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(dot.x, dot.y) for dot in chosen))
        lines.append(f'<path class="front" d="M{way}"/>')
    for dot in dots:
        x, y = place(dot.x, dot.y)
        kind = "chosen" if dot.is_chosen else "other"
        lines.append(
            f'<g><title>{escape(dot.words)}</title><circle class="{kind}" cx="{x:.1f}"'
            f' cy="{y:.1f}" r="6"/></g>'
        )
    size = f"0 0 {_WIDTH} {_HEIGHT}"
    return f'<svg class="chart" viewBox="{size}" role="img">{"".join(lines)}</svg>'


def _axis(values: Sequence[float]) -> tuple[float, float]:
    """Returns a range that contains the values and a margin."""
    low, high = min(values), max(values)
    margin = max(0.08 * (high - low), (_LEAST_RANGE * high - (high - low)) / 2)
    return max(0.0, low - margin), high + margin


def _ticks(low: float, high: float) -> list[float]:
    """Returns round numbers between two numbers."""
    step = 10 ** math.floor(math.log10(high - low))
    parts = (0.1, 0.2, 0.5, 1.0, 2.0)
    step = next(step * part for part in parts if (high - low) / (step * part) <= _MOST_TICKS)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
