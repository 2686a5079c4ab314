"""Tables of results, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from suite.results import Measured, Timed

_RATES = {
    "FLOP": ("GFLOP/s", 1e9),
    "tokens": ("tokens/s", 1.0),
    "examples": ("examples/s", 1.0),
    "bytes": ("GB/s", 1e9),
}

# The fact that has the peak bytes of a device, without the memory after importing.
_MEMORY = "peak_memory"


def table(measured: Iterable[Measured]) -> str:
    """Returns a table of the groups of one case, with a row for each peer."""
    measured = list(measured)
    units = {each.unit for each in measured}
    if len(units) != 1:
        raise ValueError(f"a table has one unit, not {sorted(units)}")
    (unit,) = units
    columns = ["", "", "ms", "spread", "t2tp / peer"]
    columns += [_RATES[unit][0]] if unit else []
    columns += ["MFU"] if unit == "FLOP" else []
    tells_memory = any(_MEMORY in timed.facts for each in measured for timed in each.timed)
    columns += ["peak MB"] if tells_memory else []
    lines = [_line(columns), "|" + " --- |" * len(columns)]
    for each in measured:
        lines += [
            _line(_cells(each, timed) + ([_memory(timed)] if tells_memory else []))
            for timed in each.timed
        ]
        blanks = [""] * (len(columns) - 3)
        lines += [
            _line([each.group, n, f"absent: {reason}", *blanks])
            for n, reason in each.absent.items()
        ]
    return "\n".join(lines)


def _cells(measured: Measured, timed: Timed) -> list[str]:
    ratio = measured.ratio(timed)
    relative = f"{ratio.value:.2f} ± {ratio.value * ratio.spread:.2f}" if ratio else ""
    if timed.name == measured.ours:
        relative = "1"
    name = f"*{timed.name}*" if timed.is_yardstick else timed.name
    cells = [measured.group, name, _milliseconds(timed.seconds), f"{timed.spread:.0%}", relative]
    if measured.unit:
        rate = measured.work_of(timed) / timed.seconds
        cells.append(_number(rate / _RATES[measured.unit][1]))
        if measured.unit == "FLOP":
            peak = measured.peak()
            cells.append(f"{rate / peak:.0%}" if peak else "")
    return cells


def _memory(timed: Timed) -> str:
    return _number(timed.facts[_MEMORY] / 1e6) if _MEMORY in timed.facts else ""


def _milliseconds(seconds: float) -> str:
    return _number(1e3 * seconds)


def _number(value: float) -> str:
    """Formats a number with three significant digits, or as an integer from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _line(cells: list[str]) -> str:
    # A bar in a text, such as an error message, would end its cell.
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
