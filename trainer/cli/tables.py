"""Reads the tables of flags, which are TOML files in this package."""

import importlib.resources
from typing import Any

from t2tp.toml import tomllib


def read(name: str) -> dict[str, Any]:
    """Reads a table.

    Args:
      name: name of the file.
    """
    return tomllib.loads(importlib.resources.files(__package__).joinpath(name).read_text("utf-8"))
