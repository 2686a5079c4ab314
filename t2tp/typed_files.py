"""Reads JSON, TOML and YAML files as typed values, within limits.

All files of runs, data, models and clusters are read here, because somebody else may have written
them: the file may be a pipe without a writer, a link to a device, a gigabyte of brackets, or have a
list in place of a number. Each of these raises an `InvalidFileError`, a sentence that names the
file, the entry, its value and the expected value.

The expected contents are a *schema*: a type annotation, such as a dataclass.

    @dataclass(frozen=True)
    class Shard:
        name: str
        bytes: Annotated[int, Limits(min=0)]
        skipped: dict[str, int] = field(default_factory=dict)

    read_json("shard.json", Shard)    # Shard(name="train-0", bytes=12, skipped={})

A schema may combine dataclasses, `dict[str, ...]`, `list[...]`, `tuple[...]`, `Literal`, unions,
bool, int, float, str and `Any`; `Annotated` adds `Limits` of numbers, or `MaxEntries` of a list or
an object. A dataclass accepts no unknown entries, and its `__post_init__` may raise a ValueError. A
mapping of names to types is the schema of an object with further entries, of any type; entries with
a name in the mapping may also be null or missing. A `TypedDict` is the schema of such an object
whose typed entries are required.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import stat
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NoReturn

import yaml

from t2tp.hparam_limits import Limits
from t2tp.suggestions import nearest
from t2tp.toml import tomllib

MAX_BYTES = 16 << 20
# The largest tokenizer.json on the Hub has 33 MB, and 2 million values.
MAX_TOKENIZER_BYTES = 64 << 20
_MAX_DEPTH = 64
# A value in a large file has at least about this many bytes. In memory it needs 100 to 200.
_BYTES_PER_VALUE = 20
# Python's parsers of YAML and TOML are slow: quadratic in the length of a line of TOML.
MAX_SLOW_BYTES, _MAX_TOML_LINE, _MAX_YAML_VALUES = 256 << 10, 3000, 10_000
_MAX_INT = 1 << 63
_SHOWN = 80

_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object of names and values",
    type(None): "null",
}
# The texts of numbers in YAML 1.2.
_NUMBER = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?", re.ASCII)
_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# A type annotation, or types of entries by name.
Schema = Any

# A size, a number of things, or a step.
Count = Annotated[int, Limits(min=0, max=1 << 50)]


class InvalidFileError(ValueError):
    """A file has unexpected contents; `str()` is a sentence with the reason."""


@dataclasses.dataclass(frozen=True)
class MaxEntries:
    """The max number of entries of a list or an object."""

    count: int


class Plain(str):
    """The text of a YAML scalar without quotes, which may mean a number, true or false."""


@contextlib.contextmanager
def open_regular(path: str | os.PathLike[str], max_bytes: int) -> Iterator[BinaryIO]:
    """Opens a file for reading, or raises `InvalidFileError` if it is not a small regular file.

    Raises:
      InvalidFileError: the path names something else, such as a pipe, a device or a directory, or
        the file is too large.
      OSError: the file cannot be opened.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise InvalidFileError(f"{path} is not a regular file")
        if state.st_size > max_bytes:
            raise InvalidFileError(
                f"{path} has {state.st_size:,} bytes, and must have at most {max_bytes:,}"
            )
        yield stack.enter_context(open(descriptor, "rb", closefd=False))


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Reads a regular file of at most `max_bytes`; raises the errors of `open_regular`."""
    with open_regular(path, max_bytes) as file:
        return file.read(max_bytes)


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> str:
    """Reads a regular file as UTF-8 text; see `read_bytes`."""
    return _decoded(read_bytes(path, max_bytes), path)


def read_json(
    path: str | os.PathLike[str],
    schema: Schema,
    max_bytes: int = MAX_BYTES,
    allow_infinite: bool = False,
) -> Any:
    """Reads a JSON file; see `parse_json`.

    Raises:
      InvalidFileError: the file is not JSON of this schema, or is too large.
      OSError: the file cannot be read.
    """
    return parse_json(read_bytes(path, max_bytes), path, schema, max_bytes, allow_infinite)


def parse_json(
    content: bytes | str,
    source: str | os.PathLike[str],
    schema: Schema,
    max_bytes: int = MAX_BYTES,
    allow_infinite: bool = False,
) -> Any:
    """Parses the JSON contents of the file `source`, and converts them to the type `schema`.

    Numbers must be finite, unless `allow_infinite`.

    Raises:
      InvalidFileError: the contents are not JSON of this schema; or they have too many values for
        `max_bytes`.
    """
    text = content if isinstance(content, str) else _decoded(content, source)
    values, max_values = sum(map(text.count, ",[{")), max_bytes // _BYTES_PER_VALUE
    if len(text) > max_bytes or values > max_values:
        raise InvalidFileError(
            f"{source} has {values:,} values and {len(text):,} characters, and must have at most"
            f" {max_values:,} and {max_bytes:,}"
        )
    value = _parsed(json.loads, text, f"{source} is not JSON", r"\u" in text, allow_infinite)
    return convert(value, schema, source)


def _parsed(
    load: Callable[[str], Any],
    text: str,
    failure: str,
    check_text: bool = False,
    allow_infinite: bool = False,
) -> Any:
    """Parses a text and checks its values; `failure` begins the message of an InvalidFileError."""
    try:
        value = load(text)
        _check_tree(value, _MAX_DEPTH, check_text, allow_infinite)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidFileError(f"{failure}: {reason}") from error
    return value


def read_toml(path: str | os.PathLike[str], schema: Schema) -> Any:
    """Reads a TOML file, and converts it to the type `schema`.

    Raises:
      InvalidFileError: the file is not TOML of this schema, or is too large.
      OSError: the file cannot be read.
    """
    text = read_text(path, MAX_SLOW_BYTES)
    if max(map(len, text.splitlines()), default=0) > _MAX_TOML_LINE:
        raise InvalidFileError(f"{path} has lines of over {_MAX_TOML_LINE:,} characters")
    return convert(_parsed(tomllib.loads, text, f"{path} is not TOML"), schema, path)


def read_yaml(path: str | os.PathLike[str], schema: Schema) -> Any:
    """Reads a YAML file, and converts it to the type `schema`.

    Scalars are texts, even if they are not quoted: `1.10` is "1.10". The schema's types, or code
    that gets a `Plain` text for `Any`, converts them. Aliases and tags are errors.

    Raises:
      InvalidFileError: the file is not YAML of this schema, or is too large.
      OSError: the file cannot be read.
    """
    text = read_text(path, MAX_SLOW_BYTES)
    try:
        value = _YamlValues(text).document()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        if isinstance(error, RecursionError):
            reason = "nested too deeply"
        raise InvalidFileError(f"{path}{place} is not YAML that t2tp reads: {reason}") from error
    return convert(value, schema, path)


class _YamlValues:
    """The values in a text of YAML, made from the parser's events: objects, lists and texts."""

    def __init__(self, text: str) -> None:
        self._events = yaml.parse(text, _YAML_LOADER)
        self._left = _MAX_YAML_VALUES

    def document(self) -> Any:
        next(self._events)  # The start of the stream.
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return {}
        value = self._value(next(self._events), _MAX_DEPTH)
        next(self._events)
        if not isinstance(event := next(self._events), yaml.StreamEndEvent):
            _refuse_yaml("there is more than one document", event)
        return value

    def _value(self, event: Any, levels: int) -> Any:
        self._left -= 1
        if not self._left:
            _refuse_yaml(f"there are over {_MAX_YAML_VALUES:,} values", event)
        if isinstance(event, yaml.AliasEvent) or event.anchor or event.tag:
            _refuse_yaml("anchors, aliases and tags are not supported", event)
        if not levels:
            _refuse_yaml("nested too deeply", event)
        if isinstance(event, yaml.ScalarEvent):
            if event.style:
                return event.value
            return None if event.value in ("", "~", "null") else Plain(event.value)
        if isinstance(event, yaml.SequenceStartEvent):
            return [self._value(each, levels - 1) for each in self._until(yaml.SequenceEndEvent)]
        entries: dict[str, Any] = {}
        for each in self._until(yaml.MappingEndEvent):
            name = self._value(each, levels - 1)
            if not isinstance(name, str):
                _refuse_yaml("this is not a name", each)
            if name in entries:
                _refuse_yaml(f"{_shown(name)} occurs twice", each)
            entries[str(name)] = self._value(next(self._events), levels - 1)
        return entries

    def _until(self, end: type) -> Iterator[Any]:
        return iter(lambda: None if isinstance(event := next(self._events), end) else event, None)


def _refuse_yaml(problem: str, event: Any) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _decoded(content: bytes, source: str | os.PathLike[str]) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidFileError(f"{source} is not UTF-8 ({error.reason})") from error


def _check_tree(
    value: Any, levels: int, check_text: bool = False, allow_infinite: bool = False
) -> None:
    """Raises RecursionError or ValueError for deep nesting, infinite numbers and half characters.

    JSON can escape one half of a UTF-16 pair, which no file name or message can contain.
    """
    if isinstance(value, dict):
        for name, each in value.items():
            try:
                _check_tree(each, levels - 1, check_text, allow_infinite)
                if check_text:
                    name.encode()
            except ValueError as error:
                raise ValueError(f"{name[:_SHOWN]!r}: {error}") from error
    elif isinstance(value, list):
        for each in value:
            _check_tree(each, levels - 1, check_text, allow_infinite)
    elif isinstance(value, float) and not (allow_infinite or math.isfinite(value)):
        raise ValueError("a number is not finite")
    elif check_text and isinstance(value, str):
        value.encode()
    if not levels:
        raise RecursionError


def convert(value: Any, schema: Schema, source: str | os.PathLike[str], name: str = "") -> Any:
    """Converts parsed contents of the file `source` to the type `schema`.

    `name` is the name of the entry with these contents; "" for the whole file.

    Raises:
      InvalidFileError: the contents do not have this type; the message names the entry.
    """
    return _Converter(source).convert(value, schema, name)


class _Converter:
    """Conversions of the contents of one file, which errors name."""

    def __init__(self, source: str | os.PathLike[str]) -> None:
        self._source = source

    def convert(self, value: Any, schema: Schema, name: str, limits: Limits | None = None) -> Any:
        # Most values of large files are texts and numbers without limits.
        fits = type(value) is schema and (schema is not int or value.bit_length() < 64)
        if fits and limits is None:
            return value
        origin, arguments = typing.get_origin(schema), typing.get_args(schema)
        if origin in (list, tuple):
            return self._list(value, schema, name, limits)
        if schema is Any:
            return value
        if origin is Annotated and isinstance(arguments[1], MaxEntries):
            if isinstance(value, dict | list) and len(value) > arguments[1].count:
                entries, most = f"{len(value):,} entries", f"{arguments[1].count:,}"
                self._refuse(name, f"has {entries}: at most {most} are read")
            return self.convert(value, arguments[0], name, limits)
        if origin is Annotated:
            return self.convert(value, arguments[0], name, arguments[1])
        if isinstance(schema, Mapping):
            return self._open_object(value, schema, name)
        if typing.is_typeddict(schema):
            return self._open_object(value, _types(schema), name, required=True)
        if dataclasses.is_dataclass(schema):
            return self._dataclass(value, typing.cast(type, schema), name)
        if origin is Literal:
            return self._choice(value, arguments, name)
        if origin in (typing.Union, types.UnionType):
            return self._union(value, arguments, name, limits)
        if origin in (dict, Mapping):
            self._check_type(value, dict, name)
            return {
                each: self.convert(v, arguments[1], f"{name}.{each}", limits)
                for each, v in value.items()
            }
        return self._scalar(value, schema, name, limits)

    def _open_object(
        self, value: Any, schema: Mapping[str, Any], name: str, required: bool = False
    ) -> dict[str, Any]:
        self._check_type(value, dict, name)
        typed = {
            each: self.convert(value.get(each), kind, f"{name}.{each}")
            for each, kind in schema.items()
            if required or value.get(each) is not None
        }
        return {**value, **typed}

    def _dataclass(self, value: Any, kind: type, name: str) -> Any:
        self._check_type(value, dict, name)
        fields = {each.name: each for each in dataclasses.fields(kind) if each.init}
        for each in value:
            if each not in fields:
                self._refuse(f"{name}.{each}", nearest(each, fields, "entries"), ": ")
        values = {}
        for each, field in fields.items():
            if each in value:
                values[each] = self.convert(value[each], _types(kind)[each], f"{name}.{each}")
            elif field.default is field.default_factory is dataclasses.MISSING:
                self._refuse(f"{name}.{each}", "is missing")
        try:
            return kind(**values)
        except InvalidFileError:
            raise
        except ValueError as error:
            self._refuse(name, str(error), ": ")

    def _choice(self, value: Any, choices: tuple[Any, ...], name: str) -> Any:
        # The types are compared, too, because True == 1 and 1.0 == 1.
        for each in (str(value), plain_value(value)) if isinstance(value, Plain) else (value,):
            if each in choices and type(each) in map(type, choices):
                return each
        self._refuse(name, f"is {_shown(value)}: the values are {', '.join(map(repr, choices))}")

    def _union(self, value: Any, kinds: tuple[Any, ...], name: str, limits: Limits | None) -> Any:
        others = [each for each in kinds if each is not type(None)]
        if value is None and len(others) < len(kinds):
            return None
        for each in others[:-1]:
            with contextlib.suppress(InvalidFileError):
                return self.convert(value, each, name, limits)
        if len(others) > 1 and not _has_type(value, others[-1]):
            self._refuse_type(value, name, *others)
        return self.convert(value, others[-1], name, limits)

    def _list(self, value: Any, schema: Schema, name: str, limits: Limits | None) -> Any:
        self._check_type(value, list, name)
        origin: Any = typing.get_origin(schema)
        kinds = typing.get_args(schema)
        if origin is list or kinds[1:] == (...,):
            kinds = kinds[:1] * len(value)
        if len(kinds) != len(value):
            self._refuse(name, f"has {len(value)} values, and must have {len(kinds)}")
        return origin(
            self.convert(each, kind, f"{name}[{i}]", limits)
            for i, (each, kind) in enumerate(zip(value, kinds, strict=True))
        )

    def _scalar(self, value: Any, kind: type, name: str, limits: Limits | None) -> Any:
        if isinstance(value, Plain) and kind is not str:
            value = plain_value(value)
        if kind is float and type(value) is int and abs(value) < _MAX_INT:
            value = float(value)
        self._check_type(value, kind, name)
        if kind is int and not -_MAX_INT <= value < _MAX_INT:
            self._refuse(name, f"is {_shown(value)}, and must have at most 64 bits")
        try:
            if limits is not None:
                limits.check(f"{self._source}: {_plain_name(name)}", value)
        except ValueError as error:
            raise InvalidFileError(str(error)) from error
        return value

    def _check_type(self, value: Any, kind: Any, name: str) -> None:
        if not _has_type(value, kind):
            self._refuse_type(value, name, kind)

    def _refuse_type(self, value: Any, name: str, *kinds: Any) -> NoReturn:
        expected = " or ".join(
            _KINDS.get(_json_type(each)) or ", ".join(map(repr, typing.get_args(each)))
            for each in kinds
        )
        self._refuse(name, f"is {_shown(value)}, and must be {expected}")

    def _refuse(self, name: str, problem: str, link: str = " ") -> NoReturn:
        entry = f": {_plain_name(name)}" if name else ""
        raise InvalidFileError(f"{self._source}{entry}{link}{problem}")


@functools.cache
def _types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _json_type(schema: Schema) -> type:
    """Returns the type of the JSON values that a schema converts; `object` for several types."""
    origin: Any = typing.get_origin(schema) or schema
    if origin is Annotated:
        return _json_type(typing.get_args(schema)[0])
    if (
        isinstance(schema, Mapping)
        or dataclasses.is_dataclass(schema)
        or typing.is_typeddict(schema)
    ):
        return dict
    return {Mapping: dict, tuple: list}.get(origin, origin)


def _has_type(value: Any, schema: Schema) -> bool:
    kind = _json_type(schema)
    return type(value) is kind or (kind is str and isinstance(value, Plain))


def plain_value(text: str) -> bool | int | float | str:
    """Returns the value that a text without quotes stands for, as in YAML 1.2."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if not _NUMBER.fullmatch(text) or len(text) > _SHOWN:
        return str(text)
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return number if math.isfinite(number) else str(text)


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return _KINDS[type(value)]
    text = repr(value[:_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _plain_name(name: str) -> str:
    name = name.removeprefix(".")
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."


def file_inside(directory: Path, name: str) -> Path:
    """Returns the path of a file in a directory, given a name from an untrusted file.

    The file must not be a link out of the directory. In the Hub's cache, however, all files of a
    snapshot are links into the same model's directory `blobs`, and these links are allowed.

    Raises:
      InvalidFileError: the name is not a plain file name, or is a link that leaves the directory.
    """
    if Path(name).name != name or "\0" in name:
        raise InvalidFileError(f"{directory}: {name!r} is not the plain name of a file")
    path = directory / name
    roots = [directory.resolve()]
    if roots[0].parent.name == "snapshots":
        roots.append(roots[0].parent.parent / "blobs")
    target = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for links in a circle.
    if not any(target.is_relative_to(root) for root in roots):
        raise InvalidFileError(
            f"{path} is a link to {target}, outside of the directory: replace it by the file itself"
        )
    return path
