"""`run.yaml`: the settings of a run. Each run writes it, and `t2tp_trainer --config` reads it.

    problem: languagemodel_python_stdlib
    model: transformer_lm
    hparams_set: transformer_lm_tiny
    mesh:
      mesh_shape: data:2;model:2
    hparams:
      learning_rate:
        constant: 0.1     # learning_rate_constant=0.1
      d_ff: 64
    flags:
      train_steps: 300

The format is YAML 1.2 without anchors and tags. A scalar has the meaning that its text has on the
command line, so `1.10` is the text "1.10" for a flag that takes text. `null` means no value.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from t2tp.atomic_file import write_text
from t2tp.suggestions import nearest
from t2tp.typed_files import InvalidFileError, Plain, convert, read_yaml

FILE = "run.yaml"
SUFFIX = ".yaml"
NAMES = ("problem", "problem_options", "model", "hparams_set", "data_digest")
MESH = ("mesh_shape", "layout")
_SECTIONS = ("mesh", "hparams", "flags")
_HEADER = "# Settings of the last start. t2tp_trainer --config=run.yaml trains with them again.\n"
# Texts that are no strings in YAML's core schema, and those that hparams read as a number, a bool
# or None ("00", "1_000", "inf", "none"): strings like these are quoted.
_NO_STRINGS = {
    "null": r"(?i:~|null|none|)",
    "bool": r"(?i:true|false)",
    "int": r"[-+]?[0-9][0-9_]*",
    "float": r"[-+]?(\.[0-9]+|[0-9_]+\.?[0-9_]*)([eE][-+]?[0-9_]+)?|[-+]?(?i:inf|infinity|nan)",
}
# The value of a flag or hparam: its text, or the texts of a list's elements.
Value = str | None | list[str]


@dataclass(frozen=True)
class RunSettings:
    """The entries of a `run.yaml`. Those that `read` returns are of the type `Value`.

    Attributes:
      names: values of the flags in `NAMES`, such as problem and model.
      hparams: values by name, mesh and layout included.
      flags: values of other flags.
    """

    names: dict[str, Any] = field(default_factory=dict)
    hparams: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict = {}

    def represent_plain(self, text: Plain) -> yaml.ScalarNode:
        """Writes a text without quotes, as it was read."""
        return self.represent_scalar(self.resolve(yaml.ScalarNode, text, (True, False)), text)


_Dumper.add_representer(Plain, _Dumper.represent_plain)
for _kind, _pattern in _NO_STRINGS.items():
    _Dumper.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})\\Z"), None
    )


def read(path: str | os.PathLike[str]) -> RunSettings:
    """Reads a `run.yaml`.

    Raises:
      InvalidFileError: the file is not a valid `run.yaml`.
      OSError: the file cannot be read.
    """
    values = dict[str, Value]
    schema = {
        **dict.fromkeys(NAMES, str),
        "mesh": values,
        "hparams": dict[str, Any],
        "flags": values,
    }
    content = read_yaml(path, schema)
    names = {name: value for name, value in content.items() if name not in _SECTIONS}
    for name in names:
        if name not in NAMES:
            known = nearest(name, [*NAMES, *_SECTIONS], "entries")
            raise InvalidFileError(f"{path}: {name}: {known}; other flags belong under flags")
    mesh, hparams, flags = (content.get(name) or {} for name in _SECTIONS)
    hparams = _flat(hparams, path)
    for name in mesh:
        if name not in MESH or name in hparams:
            problem = "it is also under hparams" if name in MESH else nearest(name, MESH, "entries")
            raise InvalidFileError(f"{path}: {name} under mesh: {problem}")
    return RunSettings(names, {**mesh, **hparams}, flags)


def write(path: str | os.PathLike[str], settings: RunSettings) -> None:
    """Writes a file atomically; omits flags that are None.

    Raises:
      OSError: the file cannot be written.
    """
    hparams = dict(settings.hparams)
    mesh = {name: hparams.pop(name) for name in MESH if name in hparams}
    flags = {name: value for name, value in settings.flags.items() if value is not None}
    content = {**settings.names, "mesh": mesh, "hparams": hparams, "flags": flags}
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False)
    write_text(path, _HEADER + text)


def _flat(values: Mapping[str, Any], path: str | os.PathLike[str]) -> dict[str, Value]:
    """Joins the names of nested mappings with `_`; checks that the others are values."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        is_nested = isinstance(value, Mapping)
        inner = _flat(value, path) if is_nested else convert(value, Value, path, name)
        for each, leaf in inner.items() if is_nested else [("", inner)]:
            joined = f"{name}_{each}" if each else name
            if joined in found:
                raise InvalidFileError(f"{path}: {joined} occurs twice under hparams")
            found[joined] = leaf
    return found
