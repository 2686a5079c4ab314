"""Reads TOML. For Python 3.10, `tomllib` is the package `tomli`."""

import importlib.resources
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["read_packaged", "tomllib"]


def read_packaged(package: str, name: str) -> dict[str, Any]:
    """Reads a TOML file that is installed with a package."""
    return tomllib.loads(importlib.resources.files(package).joinpath(name).read_text("utf-8"))
