"""Registers the ranged sets of `ranges.toml`: search spaces for `t2tp_tune`."""

from collections.abc import Mapping
from typing import Any

from t2tp import registry
from t2tp.ranged_hparams import RangedHParams
from t2tp.toml import read_packaged

RANGES = "ranges.toml"


def _register(name: str, rows: Mapping[str, Mapping[str, Any]], doc: str) -> None:
    def add_ranges(ranged: RangedHParams) -> None:
        for each, row in rows.items():
            if "values" in row:
                ranged.set_categorical(each, row["values"])
                continue
            add = ranged.set_int if isinstance(row["min"], int) else ranged.set_float
            add(each, row["min"], row["max"], scale=row.get("scale", ranged.LINEAR_SCALE))

    add_ranges.__doc__ = doc
    registry.register_ranged_hparams(name)(add_ranges)


for name, row in read_packaged(__package__, RANGES).items():
    _register(name, row, row.pop("doc"))
