"""Checks the arguments of public functions against their type hints, with one-sentence errors."""

import collections.abc
import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from t2tp.suggestions import nearest

F = TypeVar("F", bound=Callable[..., Any])


def checked(function: F) -> F:
    """Decorates a function, or a class for its `__init__`, to check the types of its arguments.

    A wrong or unknown argument raises a `TypeError` that names it. Only the outer type is checked:
    for `Mapping[str, Feature]`, whether the value is a mapping. With the hint `Annotated[int,
    Limits(min=1)]`, a value that is not within the limits raises a `ValueError`.
    """
    if isinstance(function, type):
        function.__init__ = checked(function.__init__)  # type: ignore[misc]
        return function
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__")
    accepts_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        known = [each for each in signature.parameters if each != "self"]
        for unknown in kwargs.keys() - signature.parameters.keys() if not accepts_any else ():
            raise TypeError(
                f"{name} has no argument {unknown!r}: {nearest(unknown, known, 'arguments')}"
            )
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # An argument is missing or there are too many: Python names it.
            return function(*args, **kwargs)
        hints = _hints(function)
        for argument, value in given.items():
            hint = hints.get(argument, object)
            if not fits(value, hint):
                is_annotated = typing.get_origin(hint) is Annotated
                text = hint.__origin__ if is_annotated else function.__annotations__[argument]
                text = text if isinstance(text, str) else inspect.formatannotation(text)
                raise TypeError(f"{name}: {argument} is {_shown(value)}, and must be {text}")
            for limits in getattr(hint, "__metadata__", ()):
                limits.check(argument, value)
        return function(*args, **kwargs)

    return typing.cast(F, call)


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the evaluated hints of the arguments; `Annotated` keeps its limits."""
    return typing.get_type_hints(function, include_extras=True)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has the outer type of a hint."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return fits(value, options[0])
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in options)
    kind = origin or hint
    if not isinstance(kind, type):  # Any, type variables, literals.
        return True
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    if kind in (collections.abc.Sequence, collections.abc.Iterable):
        return isinstance(value, kind) and not isinstance(
            value, str | bytes | collections.abc.Mapping
        )
    return isinstance(value, kind)


def _shown(value: Any) -> str:
    text = repr(value)
    text = text if len(text) <= 40 else f"{text[:40]}..."
    return f"{text} ({type(value).__name__})"
