"""Text files of a user: found by a pattern, their documents and lines by number, errors by line."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from t2tp.problems.checked_file import mapped
from t2tp.problems.problem import WrongOptionError
from t2tp.problems.samples import BadSampleError
from t2tp.problems.shards import OFFSET

# Most files that an error names.
_NAMED = 5

# A file is searched for line ends in pieces of so many bytes.
_PIECE = 1 << 24


def find_files(pattern: str, option: str) -> list[Path]:
    """Returns the files that a pattern such as "~/notes/**/*.txt" matches, in order.

    Args:
        pattern: with "*", "?" and "**" (folders of any depth), or a path.
        option: name of the option it was given by, for the errors.

    Raises:
        WrongOptionError: there is no pattern, or it matches no file.
        ValueError: it matches only empty files.
    """
    if not pattern:
        raise WrongOptionError(
            f"which files? say it with the option {option}, as in "
            f"--problem_options='{option}=texts/**/*.txt'"
        )
    found = glob.glob(str(Path(pattern).expanduser()), recursive=True)
    files = sorted({path for path in map(Path, found) if path.is_file()})  # "**/**" finds it twice
    if not files:
        raise WrongOptionError(f"{option}={pattern} matches no file (in {Path.cwd()})")
    if not any(path.stat().st_size for path in files):
        named = ", ".join(map(str, files[:_NAMED]))
        more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        raise ValueError(f"{option}={pattern}: there is no text in {named}{more}")
    return files


def fingerprint(files: Sequence[Path]) -> str:
    """Returns what changes when a file is changed, added or removed."""
    digest = hashlib.sha256()
    for path in files:
        state = path.stat()
        digest.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def decode(contents: bytes, path: Path, first_line: int = 1) -> str:
    """Decodes UTF-8, without the byte-order mark that a file may begin with.

    Raises:
        BadSampleError: it is not UTF-8; names the file and the line.
    """
    try:
        return contents.decode("utf-8-sig" if first_line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        read = error.object  # the contents without the mark
        line = first_line + read[: error.start].count(b"\n")
        raise BadSampleError(
            f"{path}, line {line}: not UTF-8 ({error.reason}, byte 0x{read[error.start]:02x})"
        ) from error


def json_names(path: Path) -> list[str]:
    """Returns the names in the first line of a file if it is an object in JSON; else none."""
    with path.open("rb") as file:
        line = file.readline(_PIECE)
    try:
        found = json.loads(line)
    except ValueError:
        return []
    return list(found) if isinstance(found, dict) else []


class Files:
    """The files as documents."""

    def __init__(self, paths: Sequence[Path]):
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> str:
        path = self._paths[number]
        return decode(path.read_bytes(), path)


class Lines:
    """The lines of all files, without their ends ("\\n" or "\\r\\n")."""

    def __init__(self, paths: Sequence[Path], scratch: Path, quoted: bool = False):
        """Takes the files.

        Args:
            paths: of the files.
            scratch: where it is noted where lines end, so that one process finds it for all.
            quoted: whether a line does not end between quotes ("), as in CSV.
        """
        self._paths = paths
        self._scratch = scratch
        self._quoted = quoted

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, number: int) -> str:
        path, line, contents = self._line(number)
        return decode(contents, path, line)

    def place(self, number: int) -> str:
        """Returns where a line is, as "FILE, line 12"."""
        path, line, _ = self._line(number)
        return f"{path}, line {line}"

    def _line(self, number: int) -> tuple[Path, int, bytes]:
        file = int(np.searchsorted(self._first, number, side="right")) - 1
        line = int(number - self._first[file])
        ends = self._ends[file]
        begin = int(ends[line - 1]) + 1 if line else 0
        with self._paths[file].open("rb") as opened:
            opened.seek(begin)
            contents = opened.read(int(ends[line]) - begin)
        return self._paths[file], line + 1, contents.removesuffix(b"\r")

    @cached_property
    def _ends(self) -> list[np.ndarray]:
        """Where the lines of each file end: int64 [lines]."""
        return [_line_ends(path, self._scratch / "lines", self._quoted) for path in self._paths]

    @cached_property
    def _first(self) -> np.ndarray:
        """The number of each file's first line, and the number of all: int64 [files + 1]."""
        return np.concatenate([[0], np.cumsum([len(ends) for ends in self._ends])])


def _line_ends(path: Path, noted: Path, quoted: bool) -> np.ndarray:
    """Returns where the lines of a file end: int64 [lines], of which nothing is in memory.

    Args:
        path: the file.
        noted: the directory in which it is noted; the file is read only if it has changed since.
        quoted: see `Lines`.
    """
    name = fingerprint([path.absolute()]) + "-quoted" * quoted
    ends = noted / name
    if not ends.exists():
        noted.mkdir(parents=True, exist_ok=True)
        unfinished = noted / f"{name}.tmp-{os.getpid()}"
        with unfinished.open("wb") as file:
            for found in _find_line_ends(path, quoted):
                file.write(found.astype(OFFSET).tobytes())
        unfinished.replace(ends)
    return mapped(ends, OFFSET)


def _find_line_ends(path: Path, quoted: bool) -> Iterator[np.ndarray]:
    """Gives where the lines of a file end, a piece of the file at a time."""
    begin, last, quotes = 0, b"\n", 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            contents = np.frombuffer(piece, np.uint8)
            ends = np.flatnonzero(contents == ord("\n"))
            if quoted:
                places = np.flatnonzero(contents == ord('"'))
                # An end is one only after an even number of quotes.
                ends = ends[(quotes + np.searchsorted(places, ends)) % 2 == 0]
                quotes += len(places)
            yield begin + ends
            begin, last = begin + len(piece), piece[-1:]
    if last != b"\n" or quotes % 2:  # the last line need not have an end
        yield np.array([begin])
