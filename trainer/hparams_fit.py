"""Checks whether an hparams set fits a model; completes the hparams of older runs."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import logging

import t2tp.hparams  # noqa: F401  (registers the sets)
from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparam_types import declared_type
from t2tp.suggestions import nearest, similar
from t2tp.trainer import run_yaml
from t2tp.trainer.errors import UsageError

_SHOWN_SETS = 3


def check_fits(model: str, set_name: str, hparams: HParams) -> None:
    """Checks that an hparams set has the hyperparameters that all sets of the model share.

    Warns if the set is for another model but fits this model. `set_name` is the set's name, or the
    file it was read from.

    Raises:
      UsageError: the set does not fit the model.
    """
    other_model = registry.find_model_of_hparams(set_name)
    if other_model == model:
        return
    declared = _names_in(tuple(sets_of(model)))
    missing = sorted(_common_names(model) - set(hparams.values()))
    whose = f" is for the model {other_model}, and" if other_model else ""
    if missing:
        raise UsageError(
            f"the hparams set {set_name}{whose} lacks {', '.join(missing)}, which {model} reads:"
            f" use {_way_out(model, other_model, set_name)}"
        )
    if not other_model or not declared or _is_kind_of(model, other_model):
        return
    idle = sorted(set(hparams.values()).difference(*declared))
    unread = f", and does not read {', '.join(idle)}" if idle else ""
    logging.warning(
        f"the hparams set {set_name} is for the model {other_model}; {model} goes with it{unread}"
    )


def declared(values: Mapping[str, Any], set_name: str | None, model: str | None) -> HParams:
    """Returns a `run.yaml`'s values as hparams, with the types and ranges of the run's set.

    If that set is not registered, a set of the run's model is used instead. A name that the set
    lacks gets the type of its value.

    Raises:
      ValueError: a value has the wrong type or is out of range.
    """
    is_known = set_name in registry.list_hparams()
    sets = [set_name] if set_name and is_known else sets_of(model)
    preset = next(map(registry.hparams, sets), HParams())
    found = HParams()
    try:
        for name, value in values.items():
            if name in preset:
                found.inherit(preset, [name])
            else:
                typed = declared_type(name, "any").of_texts(name, value)
                found.add(name, typed, type="any" if typed in (None, []) else None)
            found.set_texts(name, value)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return found


def read_set(name: str) -> HParams:
    """Returns a registered hparams set, or the hparams in a `run.yaml`.

    Raises:
      UnknownNameError: there is no such set.
      FileNotFoundError: there is no such file.
      ValueError: the file is damaged.
    """
    if not name.endswith(run_yaml.SUFFIX):
        return registry.hparams(name)
    if not Path(name).is_file():
        raise FileNotFoundError(f"--hparams_set={name}: there is no such file")
    settings = run_yaml.read(name)
    model = settings.names.get("model")
    known = set().union(*_names_in(tuple(sets_of(model))))
    for each in settings.hparams if known else ():
        if each not in known:
            logging.warning(
                "%s: no set of %s has %s: %s", *(name, model, each), nearest(each, known, "hparams")
            )
    return completed(declared(settings.hparams, settings.names.get("hparams_set"), model), model)


def completed(hparams: HParams, model: str | None) -> HParams:
    """Adds the hparams that a model has gained since the run was started.

    These hparams get their declared defaults. With these values the model behaves as it did before
    the hparams existed. Nothing is added for an unregistered model.
    """
    found = hparams.copy()
    names = _common_names(model)
    if not names <= found.values().keys():
        preset = registry.hparams(sets_of(model)[0])
        found.inherit(preset, (name for name in preset.values() if name in names))
    return found


def _common_names(model: str | None) -> set[str]:
    """Returns the names of the hyperparameters that all sets of a model declare."""
    declared = _names_in(tuple(sets_of(model)))
    return set.intersection(*declared) if declared else set()


def sets_of(model: str | None) -> list[str]:
    """Returns the names of a model's sets; [] for an unknown model."""
    if not model:
        return []
    return [
        name for name in registry.list_hparams() if registry.find_model_of_hparams(name) == model
    ]


@functools.cache
def _names_in(sets: tuple[str, ...]) -> list[set[str]]:
    """Returns the names of the hyperparameters that each set declares."""
    return [set(registry.hparams(name).values()) for name in sets]


def _is_kind_of(model: str, other: str) -> bool:
    """Whether `model` is a subclass of `other`, so that the sets of `other` fit it too."""
    known = other in registry.list_models()
    return known and issubclass(registry.model(model), registry.model(other))


def _way_out(model: str, other_model: str, set_name: str) -> str:
    """Suggests other models or sets, as the end of a sentence."""
    sets = sets_of(model)
    # Without similar names, prefer the sets that are named after the model.
    suggested = similar(set_name, sets) or [name for name in sets if name.startswith(model)] or sets
    remedies = [f"--model={other_model}"] if other_model else []
    return ", or ".join(
        [*remedies, f"a set of {model}, such as {', '.join(suggested[:_SHOWN_SETS])}"]
    )
