"""Reads and writes TOML. For Python 3.10, `tomllib` is the package `tomli`.

Python's standard library can only read TOML.
"""

import importlib.resources
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["read_packaged", "toml_text", "tomllib"]


def read_packaged(package: str, name: str) -> dict[str, Any]:
    """Reads a TOML file that is installed with a package."""
    return tomllib.loads(importlib.resources.files(package).joinpath(name).read_text("utf-8"))


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
