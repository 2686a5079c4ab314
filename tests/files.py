"""Helpers for files: the contents of a directory, a flipped bit, a disk that is full."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def files_in(directory: Path, ignored: str = "") -> dict[str, bytes]:
    """Returns the contents of all files below a directory, without directories named `ignored`."""
    paths = (path.relative_to(directory) for path in sorted(directory.rglob("*")) if path.is_file())
    return {
        path.as_posix(): (directory / path).read_bytes()
        for path in paths
        if ignored not in path.parts
    }


def make_large(path: Path) -> None:
    """Makes a file of 40 GiB that needs no space."""
    path.touch()
    os.truncate(path, 40 << 30)


# What may be at the path of a file instead of its proper contents.
STRANGE: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a directory": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
    "a link outside": lambda path: path.symlink_to("/etc/hostname"),
    "empty": Path.touch,
    "large": make_large,
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 9),
    "deep lists": lambda path: path.write_text("[" * 100_000),
    "deep objects": lambda path: path.write_text('{"a":' * 900 + "1" + "}" * 900),
}


def places(content, path=()):
    """Yields the paths of the values inside a JSON object, of at most 30 entries per level."""
    if isinstance(content, dict | list):
        inside = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in list(inside)[:30]:
            yield (*path, key)
            yield from places(value, (*path, key))


def with_value(content, path, value):
    if not path:
        return value
    copy = content.copy()
    copy[path[0]] = with_value(content[path[0]], path[1:], value)
    return copy


def flip(path: Path, position: int = 0) -> None:
    """Flips one bit of the byte at `position`."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def limit_files(size: int) -> None:
    """Limits the size of this process's files, for `preexec_fn`."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Simulates a full disk without root: writing beyond `size` bytes of a file fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
