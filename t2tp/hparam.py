"""HParams: the hyperparameters of a model and its training, typed and overridable from text.

    hparams = HParams(learning_rate=0.1, mesh_shape="", layers=["attention", "dense"])
    hparams.parse("learning_rate=0.2, mesh_shape=data:2;model:4, layers=[dense,dense]")
    hparams.learning_rate  # 0.2

Every hyperparameter is declared once, with a default that shows its type and with the values that
it may have. From then on a name that was never declared, a value of another type and one out of
range are refused, in code as on the command line.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import keyword
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from t2tp.hparam_limits import Limits
from t2tp.hparam_types import ValueType, declared_type, inferred_type, split_at_commas
from t2tp.nearest import nearest
from t2tp.whole_file import write_text


class _NotDeclared:
    """Stands for the value of a hyperparameter that an HParams does not have."""

    def __repr__(self) -> str:
        return "not declared"


NOT_DECLARED = _NotDeclared()


@dataclasses.dataclass(frozen=True)
class _Declaration:
    type: ValueType
    help: str
    limits: Limits
    default: Any

    def check(self, name: str, value: Any) -> Any:
        """Returns the value as exactly the type, if it is within the limits."""
        value = self.type.check(name, value)
        self.limits.check(name, value)
        return value


class UnknownHParamError(AttributeError):
    """No hyperparameter has the name."""


class HParams:
    """Named values with declared types, read and set as attributes.

    Two are equal if they have the same names with the same values of the same types, in any order.
    """

    _declarations: dict[str, _Declaration]
    _values: dict[str, Any]

    def __init__(self, **defaults: Any):
        # Past our own __setattr__, which knows only declared names.
        object.__setattr__(self, "_declarations", {})
        object.__setattr__(self, "_values", {})
        for name, default in defaults.items():
            self.add(name, default)

    def add(
        self,
        name: str,
        default: Any,
        help: str = "",
        *,
        type: Any = None,
        min: float | None = None,
        max: float | None = None,
        above: float | None = None,
        below: float | None = None,
        choices: Sequence[Any] | None = None,
    ) -> None:
        """Declares a hyperparameter.

        Args:
            name: an identifier that is no method of HParams.
            default: its value until another is set: a bool, int, float, str, list of one, or None.
            help: what it means, with its unit.
            type: bool, int, float, str, list[...] of one, or either `| None`. By default it is the
                default's type. A default of None allows None besides the type given here, and any
                value if none is given.
            min: the smallest value, of a list the smallest element.
            max: the largest value.
            above: values are larger than this; in place of `min`.
            below: values are smaller than this; in place of `max`.
            choices: all values there are.

        Raises:
            ValueError: the name cannot be used or is declared already, the type of an empty list
                is not given, or the default is out of range.
            TypeError: the default is not of the type, or there is no such type.
        """
        if name in self._values:
            raise ValueError(
                f"{name} is declared already, as {self._declarations[name].type} "
                f"{self._values[name]!r}; to change its value, set it"
            )
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise ValueError(
                f"{name!r} cannot name a hyperparameter: names are identifiers, such as 'd_model', "
                "and do not begin with '_'"
            )
        if hasattr(HParams, name):
            raise ValueError(f"{name!r} cannot name a hyperparameter: it is a method of HParams")
        if type is None:
            declared = inferred_type(name, default)
        else:
            declared = declared_type(name, type)
            if default is None:
                declared = dataclasses.replace(declared, nullable=True)
        limits = Limits(min, max, above, below, None if choices is None else tuple(choices))
        declaration = _Declaration(declared, help, limits, copy.copy(default))
        self._values[name] = declaration.check(name, default)
        self._declarations[name] = declaration

    def set(self, name: str, value: Any) -> None:
        """Sets a declared hyperparameter; the same as assigning to the attribute.

        Raises:
            AttributeError: it is not declared; names the nearest.
            TypeError: the value is not of its type.
            ValueError: the value is out of range.
        """
        self._values[name] = self._declaration(name).check(name, value)

    def get(self, name: str) -> Any:
        """Returns the value of a declared hyperparameter; the same as reading the attribute.

        Raises:
            AttributeError: it is not declared; names the nearest.
        """
        self._declaration(name)
        return self._values[name]

    def help(self, name: str) -> str:
        """Returns what the hyperparameter means, as its declaration says."""
        return self._declaration(name).help

    def default(self, name: str) -> Any:
        """Returns the value with which the hyperparameter was declared."""
        declaration = self._declaration(name)
        return declaration.check(name, declaration.default)

    def limits(self, name: str) -> Limits:
        """Returns which values of its type the hyperparameter may have."""
        return self._declaration(name).limits

    def expected(self, name: str) -> str:
        """Describes the values that the hyperparameter may have, as in "int, at least 1"."""
        declaration = self._declaration(name)
        return ", ".join(filter(None, (str(declaration.type), str(declaration.limits))))

    def values(self) -> dict[str, Any]:
        """Returns all values by name, in the order of declaration.

        The lists are copies. Raises TypeError or ValueError for a list that code has changed in
        place into something that is not of its type or out of range.
        """
        return {
            name: self._declarations[name].check(name, value)
            for name, value in self._values.items()
        }

    def copy(self) -> HParams:
        """Returns an HParams with the same declarations and values, sharing no list."""
        copied = HParams()
        copied._declarations.update(self._declarations)
        copied._values.update(self.values())
        return copied

    def parse(self, text: str) -> dict[str, Any]:
        """Sets hyperparameters from text such as `learning_rate=0.1,mesh_shape=data:2;model:4`.

        Commas separate, brackets make lists (`layers=[a,b]`), and a value that begins with a quote
        is a Python string literal, which can hold commas (`note="a, b"`). Spaces around `,` and `=`
        do not count. Calls add up: of two texts that name the same hyperparameter the later wins.

        Returns:
            The values that were set, by name.

        Raises:
            ValueError: a name is not declared or stands twice in the text, or a value is not of
                its type or out of range; then nothing is set.
        """
        parsed: dict[str, Any] = {}
        for name, value_text in _split_assignments(text):
            if name not in self._values:
                raise ValueError(f"{name}={value_text}: {self._unknown(name)}")
            if name in parsed:
                raise ValueError(f"{name}={value_text}: {name} stands twice in {text!r}")
            declaration = self._declarations[name]
            parsed[name] = declaration.type.read(name, value_text)
            declaration.limits.check(name, parsed[name])
        self._values.update(parsed)
        return parsed

    def to_json(self) -> str:
        """Returns values, types and limits as JSON; `from_json` makes an equal HParams of it."""
        types = {name: str(declared.type) for name, declared in self._declarations.items()}
        limits = {name: each.limits.to_json() for name, each in self._declarations.items()}
        limits = {name: each for name, each in limits.items() if each}
        saved = {"values": self.values(), "types": types, **({"limits": limits} if limits else {})}
        return json.dumps(saved, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> HParams:
        """Reads what `to_json` wrote, today or before there were limits.

        Raises:
            ValueError: the text is something else.
        """
        try:
            saved = json.loads(text)
            values, types = saved["values"], saved["types"]
            if values.keys() != types.keys():
                raise ValueError("its values and its types are not of the same names")
            hparams = cls()
            for name, value in values.items():
                limits = Limits.from_json(saved.get("limits", {}).get(name, {}))
                hparams.add(name, value, type=types[name], **limits.to_json())
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"this is not the JSON of an HParams: {error!r}") from error
        return hparams

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the JSON to a file, which appears (or is replaced) only when complete."""
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HParams:
        """Reads a file that `save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it holds something else; names the file.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def diff(self, other: HParams) -> list[tuple[str, Any, Any]]:
        """Returns (name, mine, the other's) for each hyperparameter in which the two differ.

        NOT_DECLARED stands for the value of one that only the other has.
        """
        mine, theirs = self.values(), other.values()
        return [
            (name, mine.get(name, NOT_DECLARED), theirs.get(name, NOT_DECLARED))
            for name in {**mine, **theirs}
            if not _same(mine.get(name, NOT_DECLARED), theirs.get(name, NOT_DECLARED))
        ]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HParams):
            return NotImplemented
        return not self.diff(other)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"HParams({inside})"

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for what is not an ordinary attribute. Names with a leading '_' are
        # not ours: copy and pickle ask for some before the instance has its own attributes.
        if name.startswith("_"):
            raise AttributeError(f"HParams has no attribute {name!r}")
        return self.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name}: a hyperparameter cannot be taken away once declared")

    def _declaration(self, name: str) -> _Declaration:
        if name not in self._declarations:
            raise UnknownHParamError(self._unknown(name))
        return self._declarations[name]

    def _unknown(self, name: str) -> str:
        return f"no hyperparameter {name!r}: {nearest(name, self._values, 'hyperparameters')}"


def describe_differences(
    saved: HParams, preset: HParams, overrides: Mapping[str, Any]
) -> list[str]:
    """Says what going on with a saved run means where its values and today's are not the same.

    Args:
        saved: the values saved with the run.
        preset: the run's hparams set as the code makes it now.
        overrides: the values given on the command line, as `HParams.parse` returns them.

    Returns:
        A line for each hyperparameter whose values differ, ending in the one that will be used: the
        override, else the saved one, else (declared since the run was saved) the default.

    Raises:
        ValueError: an override's name is declared in neither.
    """
    lines = []
    saved_values, preset_values = saved.values(), preset.values()
    names = {**saved_values, **preset_values}
    for name in overrides:
        if name not in names:
            raise ValueError(
                f"no hyperparameter {name!r}: {nearest(name, names, 'hyperparameters')}"
            )
    for name in names:
        given = {
            "the saved run": saved_values.get(name, NOT_DECLARED),
            "today's preset": preset_values.get(name, NOT_DECLARED),
        }
        if name not in saved_values and not _same(preset.default(name), preset_values[name]):
            given["its declaration"] = preset.default(name)
        if name in overrides:
            given["--hparams"] = overrides[name]
        first, *others = given.values()
        if all(_same(first, other) for other in others):
            continue
        used = next(
            source
            for source in ("--hparams", "the saved run", "its declaration", "today's preset")
            if given.get(source, NOT_DECLARED) is not NOT_DECLARED
        )
        said = ", ".join(f"{value!r} in {source}" for source, value in given.items())
        lines.append(f"{name}: {said}; using {given[used]!r} from {used}")
    return lines


def _split_assignments(text: str) -> list[tuple[str, str]]:
    """Splits `a=1, b=[2,3]` into names and the text of their values."""
    if not text.strip():
        return []
    pieces = [piece.strip() for piece in split_at_commas(text)]
    for index, piece in enumerate(pieces):
        if "=" not in piece:
            raise ValueError(_no_assignment(pieces, index))
    return [
        (name.strip(), value.strip()) for name, _, value in (each.partition("=") for each in pieces)
    ]


def _no_assignment(pieces: list[str], index: int) -> str:
    """Says what to write instead of a comma that ended a value too early."""
    piece = pieces[index]
    what = f"{piece!r} is not name=value"
    if index == 0 or not piece:
        return f"{what}; write name=value,name=value"
    rest = pieces[index:]
    end = next((i for i, each in enumerate(rest) if "=" in each), len(rest))
    name, _, value = pieces[index - 1].partition("=")
    whole = [value.strip(), *rest[:end]]
    if ":" in value:
        joined = f"{name.strip()}={';'.join(whole)}"
        return f"{what}; use ';' between mesh axes and between layout rules: {joined}"
    return (
        f"{what}; the comma before it ended {name.strip()}={value.strip()}. A list stands in "
        f"brackets: {name.strip()}=[{','.join(whole)}]; text with commas in quotes: "
        f'{name.strip()}="{",".join(whole)}"'
    )


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same types: 1, 1.0 and True are not the same."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other
