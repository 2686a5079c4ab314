"""Registries of models, problems, hparams sets, optimizers and schedules by name.

A decorator registers a class or function. The decorator is used without parentheses, or with a name
or empty parentheses:

    @registry.register_model
    class TransformerLm(Model):  # named transformer_lm
        ...

    @registry.register_hparams("transformer_lm_wide")
    def wide_language_model():
        hparams = transformer_lm_base()
        hparams.d_ff = 4096
        return hparams

    registry.model("transformer_lm")  # the class
    registry.hparams("transformer_lm_wide")  # the function's result

A name is known once the module that registers it has been imported.
"""

import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar, overload

from t2tp.hparam import HParams
from t2tp.ranged_hparams import RangedHParams
from t2tp.suggestions import check_known

_T = TypeVar("_T", bound=Callable[..., Any])

# Names are typed in shells and used in directory names.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")
_SETS = "hparams set"


class UnknownNameError(KeyError):
    """Nothing is registered under the name. `str()` is the plain message, without quotes."""

    def __str__(self) -> str:
        return str(self.args[0])


def snake_case(name: str) -> str:
    """Converts a class's CamelCase to its registered name: MtfResNet -> mtf_res_net."""
    name = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


class _Registration(NamedTuple):
    value: Callable[..., Any]
    location: str  # "file:line" of the registration
    model: str  # An hparams set's model, if the set's name does not begin with the model's.


class _Register(Protocol):
    """A registration decorator: `@register`, `@register()` or `@register("name")`."""

    @overload
    def __call__(self, target: str | None = None, *, model: str = "") -> Callable[[_T], _T]: ...

    @overload
    def __call__(self, target: _T) -> _T: ...


class Registry:
    """Classes and functions of one kind, such as "hparams set", by name."""

    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, _Registration] = {}

    def register(self, target: Any = None, *, model: str = "") -> Any:
        """Registers a class or function; can be a decorator, with or without parentheses.

        Args:
          target: the class or function itself (bare decorator), or the name under which to register
            the decorated object. Default: the object's Python name in snake_case.
          model: the model of an hparams set, if the set's name does not begin with the model's.

        Raises:
          ValueError: the target is not callable, or the name is invalid or taken.
        """
        if target is None or isinstance(target, str):
            return functools.partial(self._add, target, model)
        return self._add(None, model, target)

    def _add(self, name: str | None, model: str, value: _T) -> _T:
        location = _caller_location()
        if model and self.kind != _SETS:
            raise ValueError(f"{location}: only a {_SETS} has a model, not a {self.kind}")
        if not callable(value):
            raise ValueError(
                f"{location}: cannot register {value!r} as a {self.kind}: "
                "it must be a class or a function"
            )
        if name is None:
            name = snake_case(getattr(value, "__name__", ""))
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{location}: cannot register {value!r} as a {self.kind} by the name {name!r}: "
                "give a name of letters, digits, '_', '.' and '-', as in @register('name')"
            )
        held = self._entries.get(name)
        if held and held.value is not value:
            raise ValueError(
                f"two {self.kind}s are named {name!r}: one registered at {held.location}, "
                f"another at {location}; give one of them another name"
            )
        self._entries.setdefault(name, _Registration(value, location, model))
        return value

    def get(self, name: str) -> Any:
        """Returns the class or function registered under this name.

        Raises:
          UnknownNameError: nothing has this name; the error suggests similar names, or lists all.
        """
        return self.entry(name).value

    def entry(self, name: str) -> _Registration:
        """Returns an entry with its location and model; see `get`."""
        what, sentence = f"registered {self.kind}s", f"unknown {self.kind} {name!r}"
        check_known(name, self._entries, what, sentence, UnknownNameError)
        return self._entries[name]

    def names(self) -> list[str]:
        """Returns the registered names, sorted."""
        return sorted(self._entries)

    def help_text(self) -> str:
        """Lists the names, grouped by first word, each with the first paragraph of its docstring.

        Also shows the models of hparams sets.
        """
        heading = f"{self.kind[0].upper()}{self.kind[1:]}s:"
        if not self._entries:
            return f"{heading}\n  none registered"
        lines = [heading]
        for prefix, names in itertools.groupby(self.names(), key=lambda name: name.split("_")[0]):
            lines.append(f"  {prefix}:")
            for name in names:
                model_name = find_model_of_hparams(name) if self.kind == _SETS else ""
                suffix = f" (for {model_name})" if model_name else ""
                lines.append(f"    * {name}{suffix}{self._summary(name)}")
        return "\n".join(lines)

    def _summary(self, name: str) -> str:
        """Returns the first paragraph of an entry's docstring, if it has one."""
        # inspect.getdoc would return the base class's docstring.
        doc = inspect.cleandoc(self._entries[name].value.__doc__ or "")
        paragraph = " ".join(doc.split("\n\n")[0].split())
        return f": {paragraph}" if paragraph else ""


def _caller_location() -> str:
    """Returns "file:line" of the decorator, the nearest frame outside this file."""
    frame = sys._getframe()
    this_file = frame.f_code.co_filename
    while frame.f_back and frame.f_code.co_filename == this_file:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


_registries: dict[str, Registry] = {}


def _open(kind: str) -> tuple[_Register, Callable[[str], Any], Callable[[], list[str]]]:
    """Creates the registry of a kind; returns its functions register, get and names."""
    opened = _registries[kind] = Registry(kind)
    return opened.register, opened.get, opened.names


register_model, model, list_models = _open("model")
register_problem, problem, list_problems = _open("problem")
register_hparams, hparams_function, list_hparams = _open(_SETS)
register_ranged_hparams, ranged_hparams_function, list_ranged_hparams = _open("ranged hparams set")
register_optimizer, optimizer, list_optimizers = _open("optimizer")
register_learning_rate_schedule, learning_rate_schedule, list_learning_rate_schedules = _open(
    "learning-rate schedule"
)
register_pipeline_schedule, pipeline_schedule, list_pipeline_schedules = _open("pipeline schedule")
register_hook, hook, list_hooks = _open("hook")


def model_of_hparams(name: str) -> str:
    """Returns the name of the model that an hparams set is for.

    The model may be given at registration. Otherwise it is the longest model name with which the
    set's name begins: `transformer_lm` for `transformer_lm_tiny`.

    Raises:
      UnknownNameError: no hparams set has the name, or its model is unknown.
    """
    declared_model = _registries[_SETS].entry(name).model
    begins = [model for model in list_models() if name.startswith(model)]
    if not declared_model and not begins:
        raise UnknownNameError(
            f"the hparams set {name!r} does not say which model it is for: name it after its model,"
            " or register it with @registry.register_hparams(model='...')"
        )
    return declared_model or max(begins, key=len)


def find_model_of_hparams(name: str) -> str:
    """Returns the model that an hparams set is for; "" if the set or its model is unknown."""
    try:
        return model_of_hparams(name)
    except UnknownNameError:
        return ""


def hparams(name: str) -> HParams:
    """Calls the registered function of this name and returns its hparams set.

    Raises:
      UnknownNameError: no hparams set has the name; the error suggests similar names.
      TypeError: the function did not return an HParams.
    """
    hparams_set = hparams_function(name)()
    if not isinstance(hparams_set, HParams):
        raise TypeError(
            f"hparams set {name!r}, registered at {_registries[_SETS].entry(name).location}, "
            f"returned {hparams_set!r}, not an HParams: forgot to return hparams?"
        )
    return hparams_set


def ranged_hparams(name: str) -> RangedHParams:
    """Calls the registered function of this name on an empty ranged set; returns the set.

    Raises:
      UnknownNameError: no ranged set has the name; the error suggests similar names.
    """
    ranged = RangedHParams(name)
    ranged_hparams_function(name)(ranged)
    return ranged


def help_text() -> str:
    """Lists everything registered, one section per kind."""
    return "\n\n".join(each.help_text() for each in _registries.values())
