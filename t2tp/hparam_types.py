"""Types of hyperparameters: checks values, and parses them from text."""

import ast
import dataclasses
import inspect
import math
import numbers
import re
from typing import Any

from t2tp.typed_files import Plain, plain_value

SCALARS = (bool, int, float, str)
_TRUE = ("true", "t", "yes", "y", "on", "1")
_FALSE = ("false", "f", "no", "n", "off", "0")
_PLAIN = re.compile(r"[\w.:;+/-]*")
_WHOLE_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class ValueType:
    """The declared type of one hyperparameter.

    Attributes:
      scalar: type of the value or of its elements: bool, int, float or str; None: any of them.
      nullable: whether the value may be None.
    """

    scalar: type | None
    is_list: bool = False
    nullable: bool = False

    def __str__(self) -> str:
        """Returns the type as an annotation: "list[int] | None"; "any" if undeclared."""
        if self.scalar is None:
            return "any"
        name = f"list[{self.scalar.__name__}]" if self.is_list else self.scalar.__name__
        return f"{name} | None" if self.nullable else name

    def check(self, name: str, value: Any) -> Any:
        """Returns the value, converted to exactly this type, or raises TypeError; copies lists.

        An int is accepted as a float, and an integral float as an int. A bool is not an int.
        """
        if value is None and self.nullable:
            return None
        if isinstance(value, (list, tuple)) and (self.is_list or self.scalar is None):
            return [self._check_scalar(name, element, value) for element in value]
        if self.is_list:
            raise _mismatch(name, self, value)
        return self._check_scalar(name, value, value)

    def _check_scalar(self, name: str, value: Any, full_value: Any) -> Any:
        given = _scalar_type(value)
        scalar = self.scalar or given
        if scalar in (bool, str) and given is scalar:
            return scalar(value)
        if scalar in (int, float) and given in (int, float):
            number = _exact_number(scalar, value)
            if number is not None:
                return number
        raise _mismatch(name, self, full_value)

    def read(self, name: str, text: str) -> Any:
        """Parses the text after the `=` in `name=text`, or raises ValueError."""
        text = text.strip()
        if self.nullable and text.lower() == "none":
            return None
        bracketed = text.startswith("[")
        if bracketed and not (self.is_list or self.scalar is None):
            raise _unreadable(name, self, text, f"not a list; or quote it: {name}={text!r}")
        if self.is_list and not bracketed:
            raise _unreadable(name, self, text, f"lists stand in brackets: {name}=[{text}]")
        if not bracketed:
            return self._read_scalar(name, text, text)
        if not text.endswith("]"):
            raise _unreadable(name, self, text, "nothing can follow the closing bracket")
        content = text[1:-1]
        elements = split_at_commas(content) if content.strip() else []
        return [self._read_scalar(name, element.strip(), text) for element in elements]

    def of_texts(self, name: str, given: str | list[str] | None) -> Any:
        """Converts the text of a value, or the texts of a list's elements, as YAML has them.

        Raises:
          TypeError, ValueError: the value is not of this type.
        """
        if isinstance(given, list) and (self.is_list or self.scalar is None):
            return [self._of_text(name, text) for text in given]
        is_none = isinstance(given, Plain) and given.lower() == "none" and self.nullable
        if given is None or is_none or isinstance(given, list) or self.is_list:
            return self.check(name, None if is_none else given)
        return self._of_text(name, given)

    def _of_text(self, name: str, text: str, full_text: str = "") -> Any:
        if self.scalar is None:
            return plain_value(text) if isinstance(text, Plain) else text
        value = _read_as(self.scalar, text)
        if value is None:
            raise _unreadable(name, self, full_text or text)
        return str(value) if self.scalar is str else value

    def format(self, value: Any) -> str:
        """Returns the text from which `read` parses the value."""
        if isinstance(value, list):
            return f"[{','.join(map(self.format, value))}]"
        if isinstance(value, str):
            is_plain = self.scalar is str and _PLAIN.fullmatch(value)
            is_ambiguous = self.nullable and value.lower() == "none"
            return value if is_plain and not is_ambiguous else repr(value)
        return repr(value).lower()

    def _read_scalar(self, name: str, text: str, full_text: str) -> Any:
        if text[:1] in ("'", '"'):
            return self._of_text(name, _unquote(name, text), full_text)
        if "=" in text:
            hint = "is a comma missing? Text with an '=' must be quoted"
            if name in ("layout", "mesh_shape"):
                hint = f"its pairs have a ':', as in {name}={text.replace('=', ':')}"
            raise _unreadable(name, self, full_text, hint)
        if full_text.startswith("[") and (not text or text[0] == "["):
            raise _unreadable(
                name, self, full_text, "a list's elements are neither empty nor lists"
            )
        return self._of_text(name, Plain(text), full_text)


_ANY = ValueType(None, nullable=True)
_TYPES = [
    ValueType(scalar, is_list=is_list, nullable=nullable)
    for scalar in SCALARS
    for is_list in (False, True)
    for nullable in (False, True)
]
_BY_NAME = {str(each): each for each in (*_TYPES, _ANY)}


def declared_type(name: str, annotation: Any) -> ValueType:
    """Returns the type of a declaration: a scalar type or a list of scalars, maybe with `| None`.

    The annotation is the type itself or its name, as `str(ValueType)` writes it.

    Raises:
      TypeError: the type is not supported.
    """
    type_name = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    if type_name not in _BY_NAME:
        raise TypeError(
            f"{name}: cannot be declared as {annotation!r}; the types are bool, int, float, str, "
            "a list of one (list[int]), and any of them or None (float | None)"
        )
    return _BY_NAME[type_name]


def inferred_type(name: str, default: Any) -> ValueType:
    """Returns the type of a default; for None, a type that accepts any value.

    Raises:
      TypeError: the type of the value is not supported.
      ValueError: the default is an empty list, whose element type is unknown.
    """
    if default is None:
        return _ANY
    is_list = isinstance(default, (list, tuple))
    scalars = set(map(_scalar_type, default if is_list else [default]))
    if not scalars:
        raise ValueError(
            f"{name}: an empty list does not show the type of its elements; "
            f"declare it: add({name!r}, [], type=list[int])"
        )
    if None in scalars:
        raise TypeError(
            f"{name}: a hyperparameter is a bool, int, float or str, a list of one of them, or "
            f"None; got {default!r}"
        )
    if scalars == {int, float}:
        scalars = {float}
    if len(scalars) > 1:
        raise TypeError(f"{name}: the elements of a list are of one type; got {default!r}")
    return ValueType(scalars.pop(), is_list)


def _scalar_type(value: Any) -> type | None:
    """Returns the value's type if it is bool, int, float or str; else None."""
    if isinstance(value, bool):
        return bool
    # numpy's numbers are Integral or Real too.
    if isinstance(value, numbers.Integral):
        return int
    if isinstance(value, numbers.Real):
        return float
    return str if isinstance(value, str) else None


def split_at_commas(text: str) -> list[str]:
    """Splits at the commas outside quotes and brackets.

    Quotes and brackets are special only at the beginning of a value: "it's" and "a[0]" are plain
    text.

    Raises:
      ValueError: a quote or bracket is never closed.
    """
    pieces, start, depth = [], 0, 0
    quote, escaped, value_begins = "", False, True
    for position, char in enumerate(text):
        if quote:
            if char == quote and not escaped:
                quote = ""
            escaped = char == "\\" and not escaped
            continue
        if char in "'\"" and value_begins:
            quote = char
        elif char == "[" and value_begins:
            depth += 1
        elif char == "]" and depth:
            depth -= 1
        elif char == "," and not depth:
            pieces.append(text[start:position])
            start = position + 1
        value_begins = char in "=,[" or (value_begins and char.isspace())
    if quote or depth:
        raise ValueError(f"{text[start:].strip()!r}: the {quote or '['} is never closed")
    return [*pieces, text[start:]]


def _exact_number(scalar: type, value: Any) -> int | float | None:
    """Returns the number as an int or float; None if `scalar` cannot represent it."""
    try:
        number = scalar(value)
    except (OverflowError, ValueError):  # infinity or NaN as an int, a huge int as a float
        return None
    if scalar is int:
        return number if number == value else None
    return number if math.isfinite(number) else None


def _read_as(scalar: type, text: str) -> Any:
    """Parses one scalar; returns None if the text is not of that type."""
    if scalar is str:
        return text
    if scalar is bool:
        lowered = text.lower()
        return True if lowered in _TRUE else False if lowered in _FALSE else None
    try:
        return int(text) if scalar is int else _exact_number(float, float(text))
    except ValueError:
        pass
    # An integer in float notation, such as 1e3; beyond 2**53 a float is no longer exact.
    number = _read_as(float, text) if scalar is int else None
    if number is None or not number.is_integer() or abs(number) > 2**53:
        return None
    return int(number)


def _unquote(name: str, text: str) -> str:
    if not _WHOLE_QUOTED.fullmatch(text):
        raise ValueError(f"{name}={text}: nothing can follow the closing quote")
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{name}={text}: cannot read the quoted text: {error}") from None


def _mismatch(name: str, expected: ValueType, value: Any) -> TypeError:
    return TypeError(f"{name}: expected {expected}, got {value!r} ({type(value).__name__})")


def _unreadable(name: str, expected: ValueType, text: str, hint: str = "") -> ValueError:
    hint = f"; {hint}" if hint else ""
    return ValueError(f"{name}={text}: expected {expected}, got {text!r}{hint}")
