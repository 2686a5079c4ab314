"""The manifest of a problem's directory: counts, versions, and the size and SHA-256 of every file.

The manifest is written last, so a directory with a manifest is complete. A comparison of the
files with the manifest finds files that are truncated, missing, or from another version of the
data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from t2tp.atomic_file import write_text
from t2tp.hparam_limits import Limits
from t2tp.object_store.mirror import fill
from t2tp.problems.data.progress import ProgressBar
from t2tp.typed_files import Count, InvalidFileError, convert, read_json

FILE_NAME = "manifest.json"

# A copy of the options, to generate the data again if the manifest is lost.
OPTIONS_FILE = "options.json"

# The state of the user's files when the data were made; see `sources/user_files.py`.
SOURCES_FILE = "sources.json"

# Files that describe the data and do not change the data's digest.
_ABOUT = (OPTIONS_FILE, SOURCES_FILE)

# Suffix of the file with a shard's checksums.
CHECKS_END = ".checks"

# The key of `SplitSizes.skipped` for unusable samples.
BAD = "bad"

# Max bytes of such a file: the checksums of 500 GB with blocks of 64 KiB.
MAX_CHECKS_BYTES = 64 << 20

# Incremented when the layout of the files changes, so that old data is rejected.
FORMAT = 2

# Files up to this size are hashed when data are checked. The blocks of larger files are verified
# when they are read.
_SMALL_BYTES = 4 << 20


class DamagedDataError(ValueError):
    """Raised if the files of a prepared problem do not match its manifest."""


@dataclass(frozen=True)
class SplitSizes:
    """The size of a split or shard.

    Attributes:
      examples: number of examples; in language modelling, the number of documents.
      values: stored feature -> number of its values (tokens, pixels, ...) in all examples.
      bytes: length of the text in UTF-8; 0 without text.
      skipped: number of samples skipped, by reason.
    """

    examples: Count
    values: dict[str, Count]
    bytes: Count = 0
    skipped: dict[str, int] = field(default_factory=dict)
    shards: Annotated[int, Limits(min=1, max=99_999)] = 1

    @property
    def tokens(self) -> int:
        """The number of tokens of the targets, EOS included."""
        return self.values["targets"]

    @property
    def bad(self) -> int:
        """The number of unusable samples."""
        return self.skipped.get(BAD, 0)

    def __add__(self, other: SplitSizes) -> SplitSizes:
        return SplitSizes(
            self.examples + other.examples,
            _added(self.values, other.values),
            self.bytes + other.bytes,
            _added(self.skipped, other.skipped),
            self.shards + other.shards,
        )

    def summary(self) -> str:
        """Formats the size for humans."""
        parts = [f"{self.examples:,} examples"]
        parts += [f"{number:,} {name}" for name, number in self.values.items()]
        if self.bytes:
            parts.append(f"{self.bytes:,} bytes of text")
        parts += [f"{number:,} skipped ({reason})" for reason, number in self.skipped.items()]
        return ", ".join(parts)


@dataclass(frozen=True)
class FileState:
    """The size of a file, and its hexadecimal SHA-256, when it was written."""

    bytes: Count
    sha256: str

    @classmethod
    def from_file(cls, path: Path) -> FileState:
        """Reads a whole file and returns its state."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return cls(path.stat().st_size, digest.hexdigest())


# The dtypes of stored features. NumPy has others, such as objects, which are addresses in memory.
Dtype = Literal["|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"]


@dataclass(frozen=True)
class Manifest:
    """The description of prepared data.

    Attributes:
      options: the problem's options that determine the data: names to JSON values.
      origin: the problem's provenance: names to JSON values.
      versions: versions of the packages that made the data, by name.
      columns: the NumPy dtype of each stored feature.
      splits: sizes by split.
      vocabulary: SHA-256 of the vocabulary; "" without one.
      files: the state of every file of the directory except the manifest, by relative path.
      format: version of the layout of the files.
    """

    problem: str
    options: dict[str, Any]
    origin: dict[str, Any]
    versions: dict[str, str]
    columns: dict[str, Dtype]
    splits: dict[str, SplitSizes]
    vocabulary: str
    files: dict[str, FileState]
    format: int = FORMAT

    def __post_init__(self) -> None:
        """Raises ValueError for a name of a file outside of the directory."""
        for name in (*self.columns, *self.splits):
            if not name.isidentifier():
                raise ValueError(f"{name!r} is no name of a column or split")
        for name in self.files:
            if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
                raise ValueError(f"{name!r} is no file in this directory")

    def write(self, directory: Path) -> None:
        """Writes the manifest with its checksum into the directory."""
        fields = asdict(self)
        fields["checksum"] = _checksum(fields)
        write_text(directory / FILE_NAME, json.dumps(fields, indent=2) + "\n")

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Reads the manifest of a directory.

        Raises:
          DamagedDataError: the manifest is missing, changed, or has another format.
        """
        path = directory / FILE_NAME
        try:
            fields = read_json(path, {"format": int, "checksum": str})
            if fields.get("format") != FORMAT:
                raise DamagedDataError(
                    f"{path} has format {fields.get('format')}, this version of t2tp reads {FORMAT}"
                )
            if fields.pop("checksum", None) != _checksum(fields):
                raise DamagedDataError(f"{path} has been changed since it was written")
            return convert(fields, cls, path)
        except FileNotFoundError as error:
            raise DamagedDataError(f"{directory} has no {FILE_NAME}") from error
        except InvalidFileError as error:
            raise DamagedDataError(str(error)) from error

    def check(self, directory: Path) -> None:
        """Checks the sizes of all files, and the contents of small files and checksum files.

        Raises:
          DamagedDataError: a file is missing or changed; the message names it.
        """
        for name, state in self.files.items():
            if name.endswith(CHECKS_END) and state.bytes > MAX_CHECKS_BYTES:
                raise DamagedDataError(f"{directory / name} has {state.bytes:,} bytes")
            is_read = name.endswith(CHECKS_END) or state.bytes <= _SMALL_BYTES
            check_file(directory / name, state, read_up_to=state.bytes if is_read else 0)

    def check_contents(self, directory: Path, num_workers: int, what: str) -> None:
        """Checks the contents of every file, `num_workers` files at a time.

        `what` is the name of the data in the progress bar.

        Raises:
          DamagedDataError: a file is missing or changed.
        """
        total = sum(file_state.bytes for file_state in self.files.values())
        bytes_done = 0

        def check_one(name: str) -> int:
            state = self.files[name]
            check_file(directory / name, state, read_up_to=state.bytes)
            return state.bytes

        with (
            ProgressBar(total, f"checking the bytes of {what}") as progress,
            ThreadPoolExecutor(num_workers) as pool,
        ):
            for num_bytes in pool.map(check_one, self.files):
                bytes_done += num_bytes
                progress.show(bytes_done)

    def digest(self) -> str:
        """Returns a SHA-256 that identifies the data, independent of their origin."""
        data = {
            name: state
            for name, state in self.files.items()
            if Path(name).name not in _ABOUT and not name.endswith(CHECKS_END)
        }
        return hashlib.sha256(repr(sorted(data.items())).encode()).hexdigest()

    def summary(self) -> str:
        """Formats the sizes for humans, one line per split."""
        return "\n".join(f"{name}: {sizes.summary()}" for name, sizes in self.splits.items())


def write_options(directory: Path, options: Mapping[str, Any]) -> None:
    """Writes the options that determine the data."""
    write_text(directory / OPTIONS_FILE, json.dumps(options, indent=2) + "\n")


def read_options(directory: Path) -> dict[str, Any]:
    """Returns the options that data were made with; {} if unknown."""
    with contextlib.suppress(DamagedDataError):
        return Manifest.read(directory).options
    try:
        return read_json(directory / OPTIONS_FILE, dict[str, Any])
    except (OSError, ValueError):  # lost as well, or there are no data yet
        return {}


def check_file(path: Path, expected: FileState, read_up_to: int) -> None:
    """Checks that a file has not changed since it was written.

    Compares the size, and the contents too if the file has at most `read_up_to` bytes.

    Raises:
      DamagedDataError: the file is missing or changed.
    """
    if not path.is_file():
        raise DamagedDataError(f"{path} is missing")
    size = path.stat().st_size
    if size != expected.bytes:
        raise DamagedDataError(f"{path} has {size} bytes, {expected.bytes} were written")
    if size <= read_up_to:
        fill(path, [(0, size)])
    if size <= read_up_to and FileState.from_file(path) != expected:
        raise DamagedDataError(
            f"{path} is not the file that the rest of the data was made with: "
            f"its SHA-256 is not {expected.sha256}"
        )


def _checksum(fields: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a manifest's fields, without the checksum itself."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
