"""Records of a user's files with random access: JSON lines, CSV and TSV, Parquet, Arrow.

A record is a mapping from names to values.
"""

import bisect
import csv
import io
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from t2tp.optional_import import optional_import
from t2tp.problems.data.sample import BadSampleError, SkippedSampleError
from t2tp.problems.sources.user_files import LineRange, fingerprint
from t2tp.suggestions import check_known

Record = Mapping[str, Any]

_PROGRAM = Path(__file__).with_name("columnar_program.py")

# Max length of a field; the default of Python's csv is 128 KiB.
_LONGEST_FIELD = 1 << 31

# The advice in errors about an unbalanced quote, which merges rows.
_QUOTES = 'a value with a quote in it is written in quotes, with the quote twice: "a 5"" nail"'


class RecordFile(Protocol):
    """The records of one file."""

    def __len__(self) -> int:
        """Returns the number of records."""

    def __getitem__(self, number: int, /) -> Record:
        """Returns a record; raises `BadSampleError` if it cannot be read."""

    def location(self, number: int, /) -> str:
        """Returns the location of a record, as "FILE, line 12"."""


class Records:
    """The concatenated records of several files."""

    def __init__(self, paths: Sequence[Path], scratch: Path):
        """Opens the files; their suffixes determine the formats.

        All processes share `scratch`, a directory for indexes.

        Raises:
          ValueError: a file's format is unknown, or does not match its suffix.
          ModuleNotFoundError: pyarrow is needed and not installed.
        """
        self._files = [_open(path, scratch) for path in paths]
        self._first = [0, *itertools.accumulate(map(len, self._files))]

    def __len__(self) -> int:
        return self._first[-1]

    def __getitem__(self, number: int) -> Record:
        file, inside = self._find(number)
        return file[inside]

    def location(self, number: int) -> str:
        """Returns the location of a record, as "FILE, line 12"."""
        file, inside = self._find(number)
        return file.location(inside)

    def value(self, number: int, name: str) -> Any:
        """Returns a field of a record; `translation/en` is the field `en` inside `translation`.

        Raises:
          BadSampleError: the record cannot be read, or does not have the field.
        """
        value: Any = self[number]
        for step in [name] if name in value else name.split("/"):
            if not isinstance(value, Mapping) or step not in value:
                names = ", ".join(map(repr, self[number])) or "nothing"
                raise BadSampleError(f"{self.location(number)}: no {name!r}, only {names}")
            value = value[step]
        return value

    def _find(self, number: int) -> tuple[RecordFile, int]:
        file = bisect.bisect_right(self._first, number) - 1
        return self._files[file], number - self._first[file]


class _JsonLines:
    """A JSON object per line."""

    def __init__(self, path: Path, scratch: Path):
        self._lines = LineRange([path], scratch)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: int) -> Record:
        line = self._lines[number]
        if not line.strip():
            raise SkippedSampleError("empty line")
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadSampleError(f"{self.location(number)}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise BadSampleError(
                f"{self.location(number)}: a JSON {type(record).__name__}, and each line must be "
                'an object, as in {"text": "..."}'
            )
        return record

    def location(self, number: int) -> str:
        return self._lines.location(number)


class _Csv:
    """A table whose first row has the names of the columns; values may be quoted."""

    def __init__(self, path: Path, scratch: Path, delimiter: str):
        self._rows = LineRange([path], scratch, quoted=True)
        self._delimiter = delimiter
        self._names = self._read(0) if len(self._rows) else []
        if len(set(self._names)) < len(self._names):
            raise ValueError(f"{self._location(0)}: several columns have the same name")

    def __len__(self) -> int:
        return max(0, len(self._rows) - 1)

    def __getitem__(self, number: int) -> Record:
        values = self._read(number + 1)
        if not values:
            raise SkippedSampleError("empty line")
        if len(values) != len(self._names):
            raise BadSampleError(
                f"{self.location(number)}: {len(values)} values, and the first row has "
                f"{len(self._names)} names"
            )
        return dict(zip(self._names, values, strict=True))

    def location(self, number: int) -> str:
        return self._location(number + 1)

    def _read(self, row: int) -> list[str]:
        csv.field_size_limit(_LONGEST_FIELD)
        text = io.StringIO(self._rows[row], newline="")
        try:
            rows = list(csv.reader(text, delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            raise BadSampleError(f"{self._location(row)}: {error}; {_QUOTES}") from error
        if len(rows) > 1:  # the other rows would be lost
            raise BadSampleError(f"{self._location(row)}: {len(rows)} rows and not one; {_QUOTES}")
        return rows[0] if rows else []

    def _location(self, row: int) -> str:
        return self._rows.location(row).replace(", line ", ", row ")


class _Columns:
    """A Parquet file, or an Arrow file: an IPC file, or the IPC stream of Hugging Face's datasets.

    An Arrow file is mapped. A Parquet file is converted to one, because its rows can only be read
    in groups.
    """

    def __init__(self, path: Path, scratch: Path):
        advice = "Parquet and Arrow files are read by pyarrow: pip install -e '.[parquet]'"
        with optional_import(advice):
            import pyarrow
            import pyarrow.ipc
        self._path = path
        mapped = pyarrow.memory_map(str(_checked(path, scratch)))
        try:
            table = pyarrow.ipc.open_stream(mapped).read_all()
        except pyarrow.ArrowInvalid:
            table = pyarrow.ipc.open_file(mapped).read_all()
        self._count = table.num_rows
        self._columns = {name: table.column(name) for name in table.column_names}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Record:
        return {name: column[number].as_py() for name, column in self._columns.items()}

    def location(self, number: int) -> str:
        return f"{self._path}, row {number + 1}"


def _checked(path: Path, scratch: Path) -> Path:
    """Returns a file that is Arrow's, after `columnar_program` has read all of `path`."""
    directory = scratch / "records"
    result = directory / f"{fingerprint([path.absolute()])}.arrow"
    if not result.exists():
        directory.mkdir(parents=True, exist_ok=True)
        unfinished = result.with_name(f"{result.name}.tmp-{os.getpid()}")
        command = [sys.executable, str(_PROGRAM), str(path.absolute()), str(unfinished)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
        if done.returncode:
            unfinished.unlink(missing_ok=True)
            lines = done.stderr.strip().splitlines() if done.returncode > 0 else []
            slow = done.returncode == -signal.SIGXCPU
            ended = "it takes too long" if slow else f"its reader ended with {done.returncode}"
            reason = lines[-1] if lines else ended
            kind = "a Parquet" if path.suffix == ".parquet" else "an Arrow"
            raise ValueError(f"{path} is not {kind} file that can be read: {reason}")
        unfinished.replace(result)
    return result if result.stat().st_size else path


_FORMATS: dict[str, Callable[[Path, Path], RecordFile]] = {
    ".jsonl": _JsonLines,
    ".ndjson": _JsonLines,
    ".json": _JsonLines,
    ".csv": lambda path, scratch: _Csv(path, scratch, ","),
    ".tsv": lambda path, scratch: _Csv(path, scratch, "\t"),
    ".parquet": _Columns,
    ".arrow": _Columns,
}

ENDINGS = tuple(_FORMATS)


def _open(path: Path, scratch: Path) -> RecordFile:
    sentence = f"{path}: unknown file extension"
    check_known(path.suffix, _FORMATS, "endings that are read", sentence)
    return _FORMATS[path.suffix](path, scratch)
