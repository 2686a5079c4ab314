"""Registers the hparams sets of the TOML files of this package.

A set is a table `[model.name]` with its help text `doc`, its `parent`, and the values that differ
from the parent's. A set without a parent begins with the trainer's hyperparameters. `declares`
names groups of declarations.toml with the hyperparameters that the set's model reads:

    [vit.vit_base]
    declares = ["adapters", "vit"]
    doc = "ViT-B/16 (arXiv:2010.11929, table 1): 86 million parameters."
    batch_size = 1024

    [vit.vit_small]
    parent = "vit_base"
    doc = "ViT-S/16 (arXiv:2012.12877): 22 million parameters."
    d_model = 384
"""

import importlib.resources
from collections.abc import Mapping
from typing import Any

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams.base import DECLARATIONS, base_hparams, declare
from t2tp.hparams.ranges import RANGES
from t2tp.toml import tomllib


def _register(model: str, name: str, row: Mapping[str, Any]) -> None:
    values = dict(row)
    parent, groups = values.pop("parent", ""), values.pop("declares", ())
    doc = values.pop("doc")

    def variant() -> HParams:
        hparams = registry.hparams(parent) if parent else base_hparams()
        declare(hparams, *groups)
        for each, value in values.items():
            hparams.set(each, value)
        return hparams

    variant.__name__, variant.__doc__ = name, doc
    registry.register_hparams(name, model=model)(variant)


def register_variants(text: str) -> None:
    """Registers the sets of a file: `[model.name]` with `doc` and values."""
    for model, sets in tomllib.loads(text).items():
        for name, row in sets.items():
            _register(model, name, row)


for file in importlib.resources.files(__package__).iterdir():
    if file.name.endswith(".toml") and file.name not in (DECLARATIONS, RANGES):
        register_variants(file.read_text("utf-8"))
