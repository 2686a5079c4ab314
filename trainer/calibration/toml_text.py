"""Formats a cluster file: Python's standard library can read TOML, but not write it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any


def toml_text(table: Mapping[str, Any]) -> str:
    """Formats a table: numbers, text, lists of numbers, tables, and lists of tables."""
    return "\n".join(_lines(table, "")) + "\n"


def _lines(table: Mapping[str, Any], path: str) -> Iterator[str]:
    # The tables come last: a key after a header would belong to that table.
    for key, value in sorted(table.items(), key=lambda item: bool(_tables(item[1]))):
        header = f"[[{path}{key}]]" if isinstance(value, list) else f"[{path}{key}]"
        for each in _tables(value):
            yield from ("", header, *_lines(each, f"{path}{key}."))
        if not _tables(value):
            yield f"{key} = {_value(value)}"


def _tables(value: Any) -> list[Mapping[str, Any]]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, Mapping)]


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
