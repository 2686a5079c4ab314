"""Generates the reference pages from the code: Python API, programs, hparams and hparams sets."""

from __future__ import annotations

import html
import importlib
import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence

from absl import flags

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.quiet import quiet_import
from t2tp.trainer.cli import flag_groups
from t2tp.trainer.cli.programs import PROGRAMS

with quiet_import():
    import t2tp.hparams
    import t2tp.models  # it registers the models

# Modules that users import, besides `t2tp` itself: each declares its public names in `__all__`.
USED_MODULES = {
    "t2tp.optim": "The training step and its optimizers.",
    "t2tp.decoding": "Greedy decoding, sampling and beam search.",
    "t2tp.planner": "Step time and memory on a cluster.",
}


def pages() -> dict[str, str]:
    """Returns the Markdown of each page, by its path in the site."""
    return {
        "reference/api.md": api_page(),
        "reference/programs.md": programs_page(),
        "reference/hparams.md": hparams_page(),
        "reference/hparams_sets.md": sets_page(),
    }


def api_page() -> str:
    """Lists every public name under the module from which users import it."""
    sections = ["# Python API", "The names below are imported as `from t2tp import ...`."]
    for name in t2tp.__all__:
        sections.append(f"::: t2tp.{name}\n    options:\n      heading_level: 2")
    for module, purpose in USED_MODULES.items():
        names = importlib.import_module(module).__all__
        sections += [f"## {module}", purpose]
        sections += [f"::: {module}.{name}\n    options:\n      heading_level: 3" for name in names]
    return "\n\n".join(sections) + "\n"


def programs_page() -> str:
    """Describes every program: how it is called, and its flags by subject."""
    sections = ["# Programs and their flags", "Every program has `--help` and `--version` as well."]
    for spec in PROGRAMS.values():
        sections += [f"## {spec.name}", f"```text\n{spec.intro.strip()}\n```"]
        if spec.positional:
            rows = [[f"`{each.name}`", each.help] for each in spec.positional]
            sections.append(_table(["argument", "meaning"], rows))
        holder = flag_groups.define(spec.groups)
        for group in spec.groups:
            rows = [_flag_row(holder[name]) for name in group.rows]
            sections += [f"### {group.heading}", _table(["flag", "default", "meaning"], rows)]
    return "\n\n".join(sections) + "\n"


def _flag_row(flag: flags.Flag) -> list[str]:
    name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}"
    default = "" if flag.default in (None, "", []) else f"`{flag.default}`"
    return [f"`{name}`", default, " ".join(flag.help.split())]


def hparams_page() -> str:
    """Describes every hparam: its values, default and meaning; the hparams of all models first."""
    by_model = {model: _declared(sets) for model, sets in _sets_by_model().items()}
    shared = set.intersection(*(set(declared) for declared in by_model.values()))
    anyone = next(iter(by_model.values()))
    sections = [
        "# Hparams",
        "The table shows the declared default; [a set](hparams_sets.md) may have another.",
        "## In every set",
        _declarations(anyone[name] for name in anyone if name in shared),
    ]
    for model, declared in by_model.items():
        rows = [declared[name] for name in declared if name not in shared]
        sections += [f"## {model}", _declarations(rows)]
    return "\n\n".join(sections) + "\n"


def sets_page() -> str:
    """Describes every hparams set: its purpose, and the values that are not the defaults."""
    sections = [
        "# Hparams sets",
        "Each set with its values that are not the [defaults](hparams.md). "
        "`t2tp_trainer --print_hparams --hparams_set=NAME` prints all of them.",
    ]
    for model, names in _sets_by_model().items():
        sections.append(f"## {model}")
        for name in names:
            hparams = registry.hparams(name)
            changes = {
                key: value
                for key, value in hparams.values().items()
                if value != hparams.default(key)
            }
            sections += [f"### {name}", _description(name), _assignments(changes)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _sets_by_model() -> dict[str, list[str]]:
    """Returns the names of t2tp's own hparams sets, by the model they are for."""
    own_sets = [
        name
        for name in registry.list_hparams()
        if registry.hparams_function(name).__module__.startswith("t2tp.hparams.")
    ]
    by_model = sorted(own_sets, key=registry.model_of_hparams)
    groups = itertools.groupby(by_model, key=registry.model_of_hparams)
    return {model: sorted(names) for model, names in groups}


def _declared(sets: Iterable[str]) -> dict[str, tuple[str, HParams]]:
    """Returns each hparam that any of the sets has, with one set that declares it."""
    declared: dict[str, tuple[str, HParams]] = {}
    for name in sets:
        hparams = registry.hparams(name)
        declared.update((key, (key, hparams)) for key in hparams.values() if key not in declared)
    return declared


def _declarations(declared: Iterable[tuple[str, HParams]]) -> str:
    """Returns a table of declarations."""
    rows = [
        [f"`{name}`", hparams.expected(name), _value(hparams.default(name)), hparams.help(name)]
        for name, hparams in declared
    ]
    return _table(["hparam", "values", "default", "meaning"], rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table; markup characters in cells are escaped."""
    lines = [heads, ["--"] * len(heads), *([_as_text(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _as_text(cell: str) -> str:
    text = cell if cell.startswith("`") else html.escape(cell, quote=False).replace("*", "\\*")
    return text.replace("|", "&#124;")


def _assignments(values: Mapping[str, object]) -> str:
    """Returns values in the syntax of `--hparams`."""
    if not values:
        return "All values are the defaults."
    return "\n".join(["```text", *(f"{name}={value}" for name, value in values.items()), "```"])


def _value(value: object) -> str:
    return "empty" if value == "" else f"`{value}`"


def _description(name: str) -> str:
    """Returns the docstring of the function that makes a set."""
    return inspect.cleandoc(registry.hparams_function(name).__doc__ or "")
