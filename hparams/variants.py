"""Registers the sets of `variants.toml`: a parent's values, and some others."""

from __future__ import annotations

import importlib.resources
import sys
from collections.abc import Mapping
from typing import Any

from t2tp import registry
from t2tp.hparam import HParams

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def _register(model: str, name: str, parent: str, doc: str, values: Mapping[str, Any]) -> None:
    def variant() -> HParams:
        hparams = registry.hparams(parent)
        for each, value in values.items():
            hparams.set(each, value)
        return hparams

    variant.__name__, variant.__doc__ = name, doc
    registry.register_hparams(name, model=model)(variant)


def register_variants(text: str) -> None:
    """Registers the sets of a table: `[model.name]` with `parent`, `doc` and values."""
    for model, sets in tomllib.loads(text).items():
        for name, row in sets.items():
            _register(model, name, row.pop("parent"), row.pop("doc"), row)


register_variants(
    importlib.resources.files(__package__).joinpath("variants.toml").read_text("utf-8")
)
