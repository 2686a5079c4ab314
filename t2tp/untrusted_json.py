"""Reads JSON from untrusted sources, such as a downloaded model or another person's run.

The file may be a pipe without a writer, a link to a device, or a gigabyte of brackets, or it may
have a list in place of a number. All of these raise an `UntrustedFileError` that names the file.
"""

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

MAX_BYTES = 256 << 20  # More than twice the largest tokenizer.json on the Hub.
MAX_DEPTH = 64

# Expected types of entries, by name. An entry may also be missing or null.
Types = Mapping[str, type | tuple[type, ...]]


class UntrustedFileError(ValueError):
    """A file has unexpected contents; `str()` is a sentence with the reason."""


@contextlib.contextmanager
def open_regular(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a file for reading, or raises `UntrustedFileError` if it is not a regular file.

    Raises:
      UntrustedFileError: the path names something else, such as a pipe, a device or a directory.
      OSError: the file cannot be opened.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UntrustedFileError(f"{path} is not a regular file")
        yield stack.enter_context(open(descriptor, "rb", closefd=False))


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Reads a regular file of at most `max_bytes`.

    Raises:
      UntrustedFileError: the path names something else, or the file is too large.
      OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        contents = file.read(max_bytes + 1)
    if len(contents) > max_bytes:
        raise UntrustedFileError(f"{path} is larger than {max_bytes:,} bytes")
    return contents


def read_text(path: str | os.PathLike[str]) -> str:
    """Reads a regular file as UTF-8 text; see `read_bytes`."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UntrustedFileError(f"{path} is not UTF-8 ({error.reason})") from error


def read_object(path: str | os.PathLike[str], types: Types | None = None) -> dict[str, Any]:
    """Reads a JSON object from a file; see `parse_object`."""
    return parse_object(read_bytes(path), path, types)


def parse_object(
    text: str | bytes, source: str | os.PathLike[str], types: Types | None = None
) -> dict[str, Any]:
    """Parses the text of the file `source` as a JSON object, and checks its entries' types.

    Raises:
      UntrustedFileError: the text is not JSON, is nested too deeply or is not an object, or an
        entry has the wrong type.
    """
    try:
        content = json.loads(text)
        _check_depth(content, MAX_DEPTH)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UntrustedFileError(f"{source} is not JSON: {reason}") from error
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise UntrustedFileError(f"{source} is a {kind}, not an object of names and values")
    check_types(content, source, types or {})
    return content


def check_types(content: Mapping[str, Any], source: str | os.PathLike[str], types: Types) -> None:
    """Checks the types of entries.

    Raises:
      UntrustedFileError: an entry has another type.
    """
    for name, kind in types.items():
        value, kinds = content.get(name), kind if isinstance(kind, tuple) else (kind,)
        if float in kinds:
            kinds = (*kinds, int)
        is_flag = isinstance(value, bool) and bool not in kinds  # Python's bool is an int.
        if value is not None and (is_flag or not isinstance(value, kinds)):
            expected = " or ".join(each.__name__ for each in kinds)
            shown = repr(value)
            shown = shown if len(shown) < 80 else f"{shown[:80]}..."
            raise UntrustedFileError(f"{source}: {name} is {shown}, and must be of type {expected}")


def check_values(content: Mapping[str, Any], source: str | os.PathLike[str], kind: type) -> None:
    """Checks that all values have the type `kind`; null is not allowed.

    Raises:
      UntrustedFileError: a value is null or has another type.
    """
    null = [name for name, value in content.items() if value is None]
    if null:
        raise UntrustedFileError(
            f"{source}: {null[0]} is null, and must be of type {kind.__name__}"
        )
    check_types(content, source, dict.fromkeys(content, kind))


@contextlib.contextmanager
def as_damaged(source: str | os.PathLike[str]) -> Iterator[None]:
    """Converts errors of code that reads nested entries to `UntrustedFileError`."""
    try:
        yield
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise UntrustedFileError(f"{source} is damaged: {error!r}; download it again") from error


def file_inside(directory: Path, name: str) -> Path:
    """Returns the path of a file in a directory, given a name from an untrusted file.

    The file must not be a link out of the directory. In the Hub's cache, however, all files of a
    snapshot are links into the same model's directory `blobs`, and these links are allowed.

    Raises:
      UntrustedFileError: the name is not a plain file name, or is a link that leaves the directory.
    """
    path = directory / name
    if Path(name).name != name:
        raise UntrustedFileError(f"{directory}: {name!r} is not the plain name of a file")
    roots = [directory.resolve()]
    if roots[0].parent.name == "snapshots":
        roots.append(roots[0].parent.parent / "blobs")
    target = path.resolve()
    if not any(target.is_relative_to(root) for root in roots):
        raise UntrustedFileError(
            f"{path} is a link to {target}, outside of the directory: replace it by the file itself"
        )
    return path


def _check_depth(value: Any, levels: int) -> None:
    if not levels:
        raise RecursionError
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _check_depth(each, levels - 1)
