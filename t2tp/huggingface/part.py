"""How entries of a `config.json` become hparams, and back.

Most entries correspond to one hparam each: `hidden_size` is `d_model`, and `hidden_act` is `mlp`
with other names for the values. A type's table (`model_types/*.toml`) lists these entries, with a
`Conversion` if the values differ. Other hparams, such as those of rotary positions, depend on
several entries. A `ConfigPart` converts such a group of entries and hparams.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from t2tp.hparam import HParams

Config = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class ConfigPart:
    """Entries of a config, and the hparams that they determine.

    Attributes:
      entries: names of the entries that `read` uses.
      read: returns the hparams from a config.
      write: returns the entries from canonical hparams; see `model_type.canonical`.
      from_shapes: returns hparams from the shapes of a run's variables. The run may have left these
        hparams unset, because its problem determines them.
    """

    entries: Collection[str]
    read: Callable[[Config], dict[str, Any]]
    write: Callable[[HParams], dict[str, Any]] = lambda hparams: {}
    from_shapes: Callable[[Shapes], dict[str, Any]] = lambda shapes: {}


@dataclass(frozen=True)
class Conversion:
    """Converts between the values of an entry and of its hparam.

    Attributes:
      read: returns the hparam's value from a config and the entry's name.
      write: returns the entry's value from canonical hparams and the hparam's name.
      also: further entries that `read` uses.
    """

    read: Callable[[Config, str], Any]
    write: Callable[[HParams, str], Any] = lambda hparams, name: hparams.get(name)
    also: Collection[str] = ()


SAME_VALUE = Conversion(lambda config, entry: config[entry])


def of_entry(hparam: str, entry: str, conversion: Conversion) -> ConfigPart:
    """Returns the part for an hparam with one entry."""
    return ConfigPart(
        (entry, *conversion.also),
        lambda config: {hparam: conversion.read(config, entry)},
        lambda hparams: {entry: conversion.write(hparams, hparam)},
    )


def of_values(hparams: Mapping[str, Any]) -> ConfigPart:
    """Returns the part for hparams with fixed values."""
    return ConfigPart((), lambda config: dict(hparams))
