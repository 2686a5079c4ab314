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

The format is YAML 1.2 with its core schema, without anchors and tags. In this schema, `on` is a
string and `1e-4` is a number.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from t2tp.atomic_file import write_text
from t2tp.suggestions import nearest
from t2tp.untrusted_json import UntrustedFileError, read_bytes

FILE = "run.yaml"
SUFFIX = ".yaml"
_MAX_BYTES = 1 << 20
NAMES = ("problem", "problem_options", "model", "hparams_set", "data_digest")
MESH = ("mesh_shape", "layout")
_SECTIONS = ("mesh", "hparams", "flags")
_HEADER = "# Settings of the last start. t2tp_trainer --config=run.yaml trains with them again.\n"
_SCHEMA = {
    "null": r"~|null|",
    "bool": r"true|false",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?",
}
_STR = "tag:yaml.org,2002:str"


@dataclass(frozen=True)
class RunSettings:
    """The entries of a `run.yaml`.

    Attributes:
      names: values of the flags in `NAMES`, such as problem and model.
      hparams: values by name, mesh and layout included.
      flags: values of other flags.
    """

    names: dict[str, Any] = field(default_factory=dict)
    hparams: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        names = set()
        for key, _ in node.value:
            if key.tag != _STR or key.value in names:
                problem = f"{key.value!r} occurs twice" if key.tag == _STR else "this is not a name"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            names.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict = {}


for _each in (_Loader, _Dumper):
    for _kind, _pattern in _SCHEMA.items():
        _each.add_implicit_resolver(
            f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})\\Z"), None
        )


def read(path: str | os.PathLike[str]) -> RunSettings:
    """Reads a file; raises UntrustedFileError if it is not a valid `run.yaml`.

    Raises:
      UntrustedFileError: the file is not a valid `run.yaml`.
      OSError: the file cannot be read.
    """
    content = _parsed(path)
    names = {name: value for name, value in content.items() if name not in _SECTIONS}
    for name in names:
        if name not in NAMES:
            known = nearest(name, [*NAMES, *_SECTIONS], "entries")
            raise UntrustedFileError(f"{path}: {name}: {known}; other flags belong under flags")
    mesh, hparams, flags = (_flat(content.get(name), name, path) for name in _SECTIONS)
    for name in mesh:
        if name not in MESH or name in hparams:
            problem = "it is also under hparams" if name in MESH else nearest(name, MESH, "entries")
            raise UntrustedFileError(f"{path}: {name} under mesh: {problem}")
    for name, value in [*names.items(), *mesh.items()]:
        if not isinstance(value, str | None):
            raise UntrustedFileError(f"{path}: {name} is {value!r}, and must be of type str")
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


def _parsed(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        content = yaml.load(read_bytes(path, _MAX_BYTES), _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, UntrustedFileError):
            raise
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        if isinstance(error, RecursionError):
            reason = "nested too deeply"
        raise UntrustedFileError(f"{path}{place} is not YAML that t2tp reads: {reason}") from error
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise UntrustedFileError(f"{path} is a {kind}, not an object of names and values")
    return content


def _flat(section: Any, name: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the values of a section; joins the keys of nested mappings with `_`."""
    if not isinstance(section, Mapping | None):
        raise UntrustedFileError(f"{path}: {name} is {section!r}, not names and values")
    found: dict[str, Any] = {}
    for key, value in (section or {}).items():
        inner = (
            {f"{key}_{k}": v for k, v in _flat(value, key, path).items()}
            if (isinstance(value, Mapping) and name != "flags")
            else {key: value}
        )
        for each, leaf in inner.items():
            elements = leaf if isinstance(leaf, list) else [leaf]
            if each in found:
                raise UntrustedFileError(f"{path}: {each} occurs twice under {name}")
            if not all(isinstance(e, bool | int | float | str | None) for e in elements):
                raise UntrustedFileError(f"{path}: {each} is {leaf!r}, and must be a value or list")
            found[each] = leaf
    return found
