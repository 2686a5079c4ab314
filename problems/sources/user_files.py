"""Finds a user's text files by a pattern, with random access to documents and lines.

Also records the state of the files when data are made, and finds later changes.
"""

import contextlib
import fnmatch
import glob
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from t2tp.atomic_file import write_text
from t2tp.object_store.store import looks_like_address, without_secrets
from t2tp.problems.data.checked_file import mapped
from t2tp.problems.data.manifest import SOURCES_FILE
from t2tp.problems.data.sample import BadSampleError
from t2tp.problems.data.shards import OFFSET
from t2tp.problems.prepare.preparable import WrongOptionError
from t2tp.typed_files import read_json

# Max number of files that an error names, and of a pattern's parts.
_NAMED, _MAX_PARTS = 5, 64

_LF, _CR = b"\n\r"

# Bytes of a file that are searched for line ends at a time.
_PIECE = 1 << 24


# Max bytes of one text: of a line, or of a file that is a document.
_MAX_TEXT = 1 << 25

# Files are compared by size in bytes and modification time in nanoseconds.
_State = list[int]
# Max bytes of the record, which has about 100 bytes for each file.
_MAX_BYTES = 256 << 20


def find_files(pattern: str, option: str) -> list[Path]:
    """Returns the files that a pattern such as "~/notes/**/*.txt" matches, sorted.

    Args:
      pattern: a path, or a pattern with "*", "?", "[...]" and "**" (directories of any depth).
        The longest prefix that is an existing path is taken literally.
      option: name of the option with the pattern, for errors.

    Raises:
      WrongOptionError: the pattern is empty, is an address, or matches no file.
      ValueError: the pattern matches only empty files.
    """
    if not pattern:
        raise WrongOptionError(
            f"no files are given: use the option {option}, as in "
            f"--problem_options='{option}=texts/**/*.txt'"
        )
    if looks_like_address(pattern):
        raise WrongOptionError(
            f"{option}={without_secrets(pattern)}: expected files on this host: download them first"
        )
    matches = sorted(map(Path, matching(str(Path(pattern).expanduser()))))
    # Each real file once, by its own path rather than by a link's.
    matches.sort(key=lambda path: os.path.realpath(path) != os.path.abspath(path))
    by_target: dict[str, Path] = {}
    for path in matches:
        if path.is_file():
            by_target.setdefault(os.path.realpath(path), path)
    files = sorted(by_target.values())
    if not files:
        raise WrongOptionError(f"{option}={pattern} matches no file (in {Path.cwd()})")
    if not any(path.stat().st_size for path in files):
        named = ", ".join(map(str, files[:_NAMED]))
        more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        raise ValueError(f"{option}={pattern}: there is no text in {named}{more}")
    return files


def matching(pattern: str, within: Collection[str] | None = None) -> list[str]:
    """Returns the paths that match a pattern; see `find_files` for its literal prefix.

    Only the directories `within` are searched; None: all.
    """
    path = Path(pattern)
    literal = next((each for each in (path, *path.parents) if os.path.lexists(each)), Path())
    return list(
        _matching(str(literal), path.relative_to(literal).parts[:_MAX_PARTS], set(), within)
    )


def _matching(
    path: str, parts: Sequence[str], seen: set[tuple[int, str]], within: Collection[str] | None
) -> Iterator[str]:
    """Yields the paths below `path` that match the parts of a pattern.

    Other than `glob`, it enters each directory once, although links may lead to it in circles.
    """
    if not parts:
        yield path
        return
    here = (len(parts), os.path.realpath(path))
    if here in seen or not os.path.isdir(path) or not (within is None or path in within):
        return
    seen.add(here)
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _matching(path, rest, seen, within)
    elif not glob.has_magic(part):
        inside = os.path.join(path, part)
        if os.path.lexists(inside):
            yield from _matching(inside, rest, seen, within)
        return
    with contextlib.suppress(OSError):  # A directory that cannot be listed has no matches.
        for name in sorted(os.listdir(path)):
            inside = os.path.join(path, name)
            if name.startswith(".") > part.startswith("."):
                continue
            if part != "**" and fnmatch.fnmatchcase(name, part):
                yield from _matching(inside, rest, seen, within)
            elif part == "**" and os.path.isdir(inside):
                yield from _matching(inside, parts, seen, within)
            elif part == "**" and not rest:
                yield inside


@dataclass(frozen=True)
class _SourceRecord:
    """The contents of the record: absolute patterns, and the states of the files that match."""

    patterns: list[str]
    files: dict[str, _State]


def write_sources(directory: Path, patterns: Iterable[str]) -> None:
    """Records the present state of the files that match `patterns` (see `find_files`)."""
    absolute = [os.path.abspath(Path(pattern).expanduser()) for pattern in patterns]
    record = {"patterns": absolute, "files": _states(_all_matching(absolute))}
    write_text(directory / SOURCES_FILE, json.dumps(record, indent=0) + "\n")


def changed_sources(directory: Path) -> str:
    """Describes changes since `write_sources`; "" if none, or if no file exists any more."""
    record = read_json(directory / SOURCES_FILE, _SourceRecord, _MAX_BYTES)
    old_states = record.files
    states = _states(old_states)
    gone = [path for path in old_states if path not in states]
    if len(gone) == len(old_states):  # the data were copied from another machine
        return ""
    # Patterns of somebody else's data could match the whole file system, so only the directories
    # of the files themselves are searched.
    if any(states.get(path) == state for path, state in old_states.items()):
        within = {str(each) for path in states for each in Path(os.path.abspath(path)).parents}
        states = {**_states(_all_matching(record.patterns, within)), **states}
    changes = {
        "changed": [
            path for path in old_states if path in states and states[path] != old_states[path]
        ],
        "new": [path for path in states if path not in old_states],
        "gone": gone,
    }
    return "; ".join(f"{what}: {named(paths)}" for what, paths in changes.items() if paths)


def _all_matching(patterns: Sequence[str], within: Collection[str] | None = None) -> list[str]:
    return [path for pattern in patterns for path in matching(pattern, within)]


def _states(paths: Iterable[str]) -> Mapping[str, _State]:
    states = {}
    for path in sorted(paths):
        with contextlib.suppress(OSError):  # deleted or unreadable
            if os.path.isfile(path):
                state = os.stat(path)
                states[path] = [state.st_size, state.st_mtime_ns]
    return states


def named(paths: Sequence[str]) -> str:
    """Formats the first path and the number of further paths."""
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"


def fingerprint(files: Sequence[Path]) -> str:
    """Returns a digest of the paths, sizes and modification times of files."""
    digest = hashlib.sha256()
    for path in files:
        state = path.stat()
        digest.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def decode(contents: bytes, path: Path, first_line: int = 1) -> str:
    """Decodes UTF-8; removes a byte-order mark at the beginning of a file.

    Raises:
      BadSampleError: the bytes are not UTF-8.
    """
    try:
        return contents.decode("utf-8-sig" if first_line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        text_bytes = error.object  # the contents without the byte-order mark
        line = first_line + text_bytes[: error.start].count(b"\n")
        raise BadSampleError(
            f"{path}, line {line}: not UTF-8 ({error.reason}, byte 0x{text_bytes[error.start]:02x})"
        ) from error


def read_file(path: Path) -> str:
    """Returns the text of a file; see `decode`."""
    _check_size(path.stat().st_size, str(path))
    return decode(path.read_bytes(), path)


def _check_size(num_bytes: int, where: str) -> None:
    """Raises BadSampleError if a text is so long that its tokens would fill the memory."""
    if num_bytes > _MAX_TEXT:
        raise BadSampleError(
            f"{where}: a text of {num_bytes:,} bytes, and at most {_MAX_TEXT:,} are read as one:"
            " divide it, as with documents=paragraphs or documents=lines"
        )


def json_names(path: Path) -> list[str]:
    """Returns the keys of the JSON object in the first line of a file; [] if there is none."""
    with path.open("rb") as file:
        line = file.readline(_PIECE)
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return list(record) if isinstance(record, dict) else []


class LineRange:
    """The lines of all files, without their line ends (LF or CR LF)."""

    separator = "lines"

    def __init__(
        self, paths: Sequence[Path], scratch: Path, quoted: bool = False, piece_bytes: int = _PIECE
    ):
        """Sets the files; reads nothing yet.

        All processes share `scratch`, a directory for the index of line ends. If `quoted` is set,
        line ends in quotes (") are part of the line, as in CSV.
        """
        self._paths = paths
        self._piece_bytes = piece_bytes
        self._scratch = scratch
        self._quoted = quoted

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, number: int) -> str:
        path, line, contents = self._line(number)
        return decode(contents, path, line)

    def location(self, number: int) -> str:
        """Returns the location of a line, as "FILE, line 12"."""
        path, line, _ = self._line(number)
        return f"{path}, line {line}"

    def _line(self, number: int) -> tuple[Path, int, bytes]:
        file = int(np.searchsorted(self._first, number, side="right")) - 1
        line = int(number - self._first[file])
        ends = self._ends[file]
        begin = int(ends[line - 1]) + 1 if line else 0
        _check_size(int(ends[line]) - begin, f"{self._paths[file]}, line {line + 1}")
        with self._paths[file].open("rb") as opened:
            opened.seek(begin)
            contents = opened.read(int(ends[line]) - begin)
        return self._paths[file], line + 1, contents.removesuffix(b"\r")

    @cached_property
    def _ends(self) -> list[np.ndarray]:
        """The positions of each file's line ends: int64 [lines]."""
        how = (self._scratch / self.separator, self._quoted, self._piece_bytes)
        return [_line_ends(path, *how) for path in self._paths]

    @cached_property
    def _first(self) -> np.ndarray:
        """The index of each file's first line, and the number of lines: int64 [files + 1]."""
        return np.concatenate([[0], np.cumsum([len(ends) for ends in self._ends])])


class Paragraphs(LineRange):
    """The paragraphs of all files: the texts between blank lines, without line ends around them."""

    separator = "paragraphs"

    def __getitem__(self, number: int) -> str:
        path, _, contents = self._line(number)
        try:
            return decode(contents, path).strip("\r\n")
        except BadSampleError:
            read_file(path)  # Raises an error with the number of the line in the file.
            raise


def _line_ends(path: Path, index_dir: Path, quoted: bool, piece_bytes: int) -> np.ndarray:
    """Returns the memory-mapped positions of a file's line ends: int64 [lines].

    Reads the file only if `index_dir` has no positions of this version of the file.
    """
    name = fingerprint([path.absolute()]) + "-quoted" * quoted
    ends = index_dir / name
    blank = index_dir.name == Paragraphs.separator
    return stored(ends, lambda: _find_line_ends(path, quoted, piece_bytes, blank))


def stored(path: Path, make: Callable[[], Iterable[np.ndarray]]) -> np.ndarray:
    """Returns a memory-mapped file of the integers that `make` yields in pieces: int64 [any].

    Calls `make` only if the file does not exist yet.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.tmp-{os.getpid()}")
        with unfinished.open("wb") as file:
            for numbers in make():
                file.write(numbers.astype(OFFSET).tobytes())
        unfinished.replace(path)
    return mapped(path, OFFSET)


def _find_line_ends(
    path: Path, quoted: bool, piece_bytes: int, blank: bool = False
) -> Iterator[np.ndarray]:
    """Yields the positions of a file's line ends, piece by piece; if `blank`, of blank lines."""
    begin, last_end, quotes, before = 0, -1, 0, b"  "
    with path.open("rb") as file:
        while piece := file.read(piece_bytes):
            contents = np.frombuffer(piece, np.uint8)
            ends = np.flatnonzero(contents == _LF)
            if blank:
                # A line is blank if its end follows a line end, as in "\n\n" or "\r\n\r\n".
                joined = np.frombuffer(before + piece, np.uint8)
                last, second_last = joined[1:-1][ends], joined[:-2][ends]
                is_blank = (last == _LF) | (last == _CR) & (second_last == _LF)
                ends, before = ends[is_blank], joined[-2:].tobytes()
            if quoted:
                quote_positions = np.flatnonzero(contents == ord('"'))
                # A line ends only outside quotes: after an even number of quotes.
                ends = ends[(quotes + np.searchsorted(quote_positions, ends)) % 2 == 0]
                quotes += len(quote_positions)
            yield begin + ends
            last_end = begin + int(ends[-1]) if len(ends) else last_end
            begin += len(piece)
    if last_end < begin - 1:  # The last line need not have a line end.
        yield np.array([begin])
