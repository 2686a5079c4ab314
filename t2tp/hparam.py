"""HParams: the hyperparameters of a model and its training, typed and overridable from text.

    hparams = HParams(learning_rate=0.1, mesh_shape="", layers=["attention", "dense"])
    hparams.parse("learning_rate=0.2, mesh_shape=data:2;model:4, layers=[dense,dense]")
    hparams.learning_rate  # 0.2

Every hyperparameter is declared once, with a default and limits. The default determines the type.
Setting an undeclared name, a value of another type or a value out of range raises an error.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from t2tp.hparam_limits import Limits
from t2tp.hparam_types import ValueType, declared_type, inferred_type, split_at_commas
from t2tp.suggestions import nearest

T = TypeVar("T")


class _NotDeclared:
    """The value of a hyperparameter that an HParams does not have."""

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
        """Returns the value converted to the type, if it is within the limits."""
        value = self.type.check(name, value)
        self.limits.check(name, value)
        return value


class UnknownHParamError(AttributeError):
    """No hyperparameter has this name."""


class HParams:
    """Named values with declared types, read and set as attributes.

    Two HParams are equal if they have the same names, values and types, in any order.
    """

    _declarations: dict[str, _Declaration]
    _values: dict[str, Any]

    def __init__(self, **defaults: Any):
        # Bypasses __setattr__, because it accepts only declared names.
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
          name: an identifier that is not a method of HParams.
          default: a bool, int, float or str, a list of these, or None.
          help: a description, with the unit.
          type: bool, int, float, str, list[...] of one of these, or any of these with `| None`.
            Default: the type of `default`. If `default` is None, None is always allowed; any other
            value must be of `type`, if `type` is given.
          min: the min value, or min element of a list.
          max: the max value, or max element of a list.
          above: an exclusive lower bound, in place of `min`.
          below: an exclusive upper bound, in place of `max`.
          choices: the allowed values.

        Raises:
          ValueError: the name is invalid or already declared, the type of an empty list is not
            given, or the default is out of range.
          TypeError: the default is not of the type, or the type is not supported.
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

    def remove(self, name: str) -> None:
        """Removes a declaration; raises AttributeError if there is none."""
        self._declaration(name)
        del self._values[name], self._declarations[name]

    def set(self, name: str, value: Any) -> None:
        """Sets a declared hyperparameter, as assigning to the attribute does.

        Raises:
          AttributeError: the name is not declared; the error suggests similar names.
          TypeError: the value has another type.
          ValueError: the value is out of range.
        """
        self._values[name] = self._declaration(name).check(name, value)

    def get(self, name: str) -> Any:
        """Returns a value, as reading the attribute does; see `set` for errors.

        Raises:
          AttributeError: the name is not declared; the error suggests similar names.
        """
        self._declaration(name)
        return self._values[name]

    def help(self, name: str) -> str:
        """Returns the help text of a hyperparameter."""
        return self._declaration(name).help

    def default(self, name: str) -> Any:
        """Returns the default of a hyperparameter."""
        declaration = self._declaration(name)
        return declaration.check(name, declaration.default)

    def limits(self, name: str) -> Limits:
        """Returns the limits of a hyperparameter."""
        return self._declaration(name).limits

    def expected(self, name: str) -> str:
        """Describes a hyperparameter's allowed values, as in "int, at least 1"."""
        declaration = self._declaration(name)
        return ", ".join(filter(None, (str(declaration.type), str(declaration.limits))))

    def values(self) -> dict[str, Any]:
        """Returns all values by name, in the order of declaration.

        Lists are copied. Raises TypeError or ValueError if code has changed a list in place to a
        value that `set` rejects.
        """
        return {
            name: self._declarations[name].check(name, value)
            for name, value in self._values.items()
        }

    def copy(self) -> HParams:
        """Returns an HParams with the same declarations and values. Lists are copied."""
        copied = HParams()
        copied._declarations.update(self._declarations)
        copied._values.update(self.values())
        return copied

    def with_values(self, values: Mapping[str, Any]) -> HParams:
        """Returns a copy with these values; ignores values of unknown names."""
        changed = self.copy()
        for name, value in values.items():
            if name in changed:
                changed.set(name, value)
        return changed

    def construct(self, make: Callable[..., T], *args: Any, prefix: str = "", **given: Any) -> T:
        """Calls `make`; a parameter that is not given is the hyperparameter of the same name.

        A layer can name its parameters like the hyperparameters that set them. Then nobody has to
        pass them one by one, and none can be forgotten: even a parameter with a default is read.

        Args:
          make: a class or function.
          *args: its first arguments.
          prefix: what precedes the parameters' names in the names of hyperparameters: `moe_`.
          **given: arguments by name.

        Raises:
          AttributeError: a parameter is neither given nor declared as a hyperparameter.
        """
        names = list(inspect.signature(make).parameters)[len(args) :]
        read = {name: self.get(prefix + name) for name in names if name not in given}
        return make(*args, **given, **read)

    def inherit(self, other: HParams, names: Iterable[str]) -> None:
        """Declares the missing `names` as `other` does, with the same defaults.

        Raises:
          AttributeError: a name is not declared in `other`.
        """
        for name in names:
            if name not in self._values:
                declaration = other._declaration(name)
                self._declarations[name] = declaration
                self._values[name] = declaration.check(name, declaration.default)

    def parse(self, text: str) -> dict[str, Any]:
        """Sets hyperparameters from text such as `learning_rate=0.1,mesh_shape=data:2;model:4`.

        Commas separate assignments, brackets delimit lists (`layers=[a,b]`), and a value that
        begins with a quote is a Python string literal, which may contain commas (`note="a, b"`).
        Spaces around `,` and `=` are ignored. A later call overrides an earlier one.

        Returns:
          The values that were set, by name.

        Raises:
          ValueError: a name is not declared or occurs twice in the text, or a value has the wrong
            type or is out of range. Nothing is set then.
        """
        parsed: dict[str, Any] = {}
        for name, value_text in _split_assignments(text):
            if name not in self._values:
                raise ValueError(f"{name}={value_text}: {self._unknown(name)}")
            if name in parsed:
                raise ValueError(f"{name}={value_text}: {name} occurs twice in {text!r}")
            declaration = self._declarations[name]
            parsed[name] = declaration.type.read(name, value_text)
            declaration.limits.check(name, parsed[name])
        self._values.update(parsed)
        return parsed

    def set_texts(self, name: str, given: str | list[str] | None) -> Any:
        """Sets a hyperparameter to a text in the syntax of its type, or to a list of such texts.

        Returns:
          The value.

        Raises:
          ValueError: the name is not declared, or the value has the wrong type or is out of range.
        """
        try:
            self.set(name, self._declaration(name).type.of_texts(name, given))
        except (AttributeError, TypeError) as error:
            raise ValueError(str(error)) from error
        return self._values[name]

    def assignments(self, names: Iterable[str]) -> str:
        """Formats values in the syntax of `parse`: `microbatches=2,recompute=layer`."""
        return ",".join(
            f"{name}={self._declaration(name).type.format(self.get(name))}" for name in names
        )

    def diff(self, other: HParams) -> list[tuple[str, Any, Any]]:
        """Returns (name, own value, other's value) for each hyperparameter that differs.

        NOT_DECLARED stands for the value in an HParams that lacks the hyperparameter.
        """
        own_values, other_values = self.values(), other.values()
        return [
            (name, own_values.get(name, NOT_DECLARED), other_values.get(name, NOT_DECLARED))
            for name in {**own_values, **other_values}
            if not _same(own_values.get(name, NOT_DECLARED), other_values.get(name, NOT_DECLARED))
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
        # Python calls this only for missing attributes. copy and pickle look up names with a
        # leading '_' before the instance has its own attributes.
        if name.startswith("_"):
            raise AttributeError(f"HParams has no attribute {name!r}")
        return self.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def _declaration(self, name: str) -> _Declaration:
        if name not in self._declarations:
            raise UnknownHParamError(self._unknown(name))
        return self._declarations[name]

    def _unknown(self, name: str) -> str:
        return f"no hyperparameter {name!r}: {nearest(name, self._values, 'hyperparameters')}"


def describe_differences(
    saved: HParams, preset: HParams, overrides: Mapping[str, Any]
) -> list[str]:
    """Describes the differences between a saved run's values and current ones, for a resume.

    `preset` has the current values of the hparams set from which the run was made. `overrides` are
    the values given on the command line, as `HParams.parse` returns them.

    Returns:
      A line per hyperparameter whose value differs from the saved run's. The line ends with the
      value used: the override, or the default of a hyperparameter that was declared after the run
      was saved. A changed value in the hparams set does not change a saved run, so it has no line.
    """
    lines = []
    saved_values, preset_values = saved.values(), preset.values()
    names = {**saved_values, **preset_values}
    for name in names:
        given = {"the saved run": saved_values.get(name, NOT_DECLARED)}
        if name not in saved_values:
            given["the hparams set"] = preset_values[name]
            if not _same(preset.default(name), preset_values[name]):
                given["its declaration"] = preset.default(name)
        if name in overrides:
            given["--hparams"] = overrides[name]
        first, *others = given.values()
        if all(_same(first, other) for other in others):
            continue
        used = next(
            source
            for source in ("--hparams", "the saved run", "its declaration", "the hparams set")
            if given.get(source, NOT_DECLARED) is not NOT_DECLARED
        )
        values = ", ".join(f"{value!r} in {source}" for source, value in given.items())
        lines.append(f"{name}: {values}; using {given[used]!r} from {used}")
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
    """Returns advice for a comma that ended a value too early."""
    piece = pieces[index]
    problem = f"{piece!r} is not name=value"
    if index == 0 or not piece:
        return f"{problem}; write name=value,name=value"
    rest = pieces[index:]
    end = next((i for i, each in enumerate(rest) if "=" in each), len(rest))
    name, _, value = pieces[index - 1].partition("=")
    whole = [value.strip(), *rest[:end]]
    if ":" in value:
        joined = f"{name.strip()}={';'.join(whole)}"
        return f"{problem}; use ';' between mesh axes and between layout rules: {joined}"
    return (
        f"{problem}; the comma before it ended {name.strip()}={value.strip()}. A list stands in "
        f"brackets: {name.strip()}=[{','.join(whole)}]; text with commas in quotes: "
        f'{name.strip()}="{",".join(whole)}"'
    )


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal and have the same type: 1, 1.0 and True differ."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other
