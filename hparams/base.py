"""Declares the hyperparameters of `declarations.toml`, and registers the sets of the other files.

`ranges.toml` has the ranged sets, which are search spaces for `t2tp_tune`.

A set is a table `[model.name]` with its help text `doc`, its `parent`, and the values that differ
from the parent's. A set without a parent begins with the trainer's hyperparameters. `declares`
names groups of declarations.toml with the hyperparameters that the set's model reads, and `without`
the groups of the parent that it does not read:

    [vit.vit_base]
    declares = ["adapters", "vit"]
    doc = "ViT-B/16 (arXiv:2010.11929, table 1): 86 million parameters."
    batch_size = 1024

    [vit.vit_small]
    parent = "vit_base"
    doc = "ViT-S/16 (arXiv:2012.12877): 22 million parameters."
    d_model = 384
"""

import functools
import importlib.resources
from collections.abc import Mapping
from typing import Any

from t2tp import choices, registry
from t2tp.hparam import HParams
from t2tp.ranged_hparams import RangedHParams
from t2tp.toml import read_packaged, tomllib

DECLARATIONS, RANGES = "declarations.toml", "ranges.toml"

# Groups that every set has, because the trainer reads them.
_GROUPS = ("base", "optimizer", "guards", "learning_rate")

# Limits that many hyperparameters share.
_MAX_SIZE = 2**20
_LIMITS: dict[str, dict[str, float]] = {
    "size": {"min": 1, "max": _MAX_SIZE},
    "size_or_0": {"min": 0, "max": _MAX_SIZE},
    "rate": {"min": 0, "below": 1},
}


def base_hparams() -> HParams:
    """Returns the hyperparameters of the trainer, which every set has."""
    hparams = HParams()
    declare(hparams, *_GROUPS)
    return hparams


def declare(hparams: HParams, *groups: str) -> None:
    """Declares the hyperparameters in some groups of `declarations.toml`.

    Raises:
      KeyError, TypeError, AttributeError: there is no such group, or a row is invalid.
    """
    for group in groups:
        for name, declared in _declarations()[group].items():
            row = dict(declared)
            if "range" in row:
                row |= _LIMITS[row.pop("range")]
            if isinstance(row.get("choices"), str):
                row["choices"] = getattr(choices, row["choices"])
            hparams.add(name, **row)


@functools.cache
def _declarations() -> dict[str, Any]:
    return read_packaged(__package__, DECLARATIONS)


def _register(model: str, name: str, row: Mapping[str, Any]) -> None:
    values = dict(row)
    parent, groups = values.pop("parent", ""), values.pop("declares", ())
    unread = [name for group in values.pop("without", ()) for name in _declarations()[group]]
    doc = values.pop("doc")

    def variant() -> HParams:
        hparams = registry.hparams(parent) if parent else base_hparams()
        for each in unread:
            hparams.remove(each)
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


def _register_ranges(name: str, rows: Mapping[str, Mapping[str, Any]], doc: str) -> None:
    def add_ranges(ranged: RangedHParams) -> None:
        for each, row in rows.items():
            if "values" in row:
                ranged.set_categorical(each, row["values"])
                continue
            add = ranged.set_int if isinstance(row["min"], int) else ranged.set_float
            add(each, row["min"], row["max"], scale=row.get("scale", ranged.LINEAR_SCALE))

    add_ranges.__doc__ = doc
    registry.register_ranged_hparams(name)(add_ranges)


for file in importlib.resources.files(__package__).iterdir():
    if file.name.endswith(".toml") and file.name not in (DECLARATIONS, RANGES):
        register_variants(file.read_text("utf-8"))
for name, row in read_packaged(__package__, RANGES).items():
    _register_ranges(name, row, row.pop("doc"))
