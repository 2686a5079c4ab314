"""Registers the hparams sets of the TOML files of this package.

Most sets differ from another set only in values. Such a set is a table `[model.name]` with its
`parent`, its help text `doc`, and the values that differ:

    [transformer_lm.gpt2_medium]
    parent = "gpt2_small"
    doc = "24 layers of 1024: 355 million parameters; 8 rows at a time on one device."
    d_model = 1024
"""

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


for file in importlib.resources.files(__package__).iterdir():
    if file.name.endswith(".toml"):
        register_variants(file.read_text("utf-8"))
