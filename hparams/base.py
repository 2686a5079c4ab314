"""Declares the hyperparameters in the tables of `declarations.toml`."""

import copy
import functools
from typing import Any

from t2tp import choices
from t2tp.hparam import HParams
from t2tp.toml import read_packaged

DECLARATIONS = "declarations.toml"

# Groups that every set has, because the trainer reads them.
_GROUPS = ("base", "optimizer", "guards", "learning_rate")

# Limits that many hyperparameters share.
_MAX_SIZE = 2**20
_RANGES: dict[str, dict[str, float]] = {
    "size": {"min": 1, "max": _MAX_SIZE},
    "size_or_0": {"min": 0, "max": _MAX_SIZE},
    "rate": {"min": 0, "below": 1},
}
_LISTS = {"list[int]": list[int], "list[float]": list[float], "list[str]": list[str]}


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
            row = copy.deepcopy(declared)
            if "range" in row:
                row |= _RANGES[row.pop("range")]
            if "type" in row:
                row["type"] = _LISTS[row["type"]]
            if isinstance(row.get("choices"), str):
                row["choices"] = getattr(choices, row["choices"])
            hparams.add(name, **row)


@functools.cache
def _declarations() -> dict[str, Any]:
    return read_packaged(__package__, DECLARATIONS)
