"""What lies in a problem's folder: counts, versions, and the size and SHA-256 of every file.

It is written last, so a folder with a manifest is complete; reading it back finds a file that was
cut short, is missing, or does not belong to the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from t2tp.problems.progress import Progress
from t2tp.whole_file import write_text

FILE_NAME = "manifest.json"

# The options again: where the manifest is lost they say how to make the data.
OPTIONS_FILE = "options.json"

# What a user's files were like that the data were made from; see `sources.py`.
SOURCES_FILE = "sources.json"

# These say something about the data; the others are the data.
_ABOUT = (OPTIONS_FILE, SOURCES_FILE)

# The name of a shard's file of checksums ends so.
CHECKS_END = ".checks"

# The reason for which samples are left out that cannot be used.
BAD = "bad"

# Raised when the layout of the files changes, so that old data is refused and not misread.
FORMAT = 2

# Checking reads files up to this size, and of larger ones looks at the size only: their blocks are
# checked when they are read.
_SMALL_BYTES = 4 << 20


class DamagedDataError(ValueError):
    """The files of a prepared problem are not what its manifest says."""


@dataclass(frozen=True)
class SplitSizes:
    """How much a split, or a shard of it, holds.

    Attributes:
        examples: number of examples; of language modelling: documents.
        values: how many numbers each stored feature has over all examples: tokens, pixels, ...
        bytes: length of the text in UTF-8; 0 where there is no text.
        skipped: how many samples of the source were left out, by the reason.
        shards: number of parts that the files are in.
    """

    examples: int
    values: dict[str, int]
    bytes: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    shards: int = 1

    @property
    def tokens(self) -> int:
        """How many tokens the targets have, their ends included."""
        return self.values["targets"]

    def __add__(self, other: SplitSizes) -> SplitSizes:
        return SplitSizes(
            self.examples + other.examples,
            _added(self.values, other.values),
            self.bytes + other.bytes,
            _added(self.skipped, other.skipped),
            self.shards + other.shards,
        )

    def summary(self) -> str:
        """Says in words how much it is."""
        parts = [f"{self.examples:,} examples"]
        parts += [f"{number:,} {name}" for name, number in self.values.items()]
        if self.bytes:
            parts.append(f"{self.bytes:,} bytes of text")
        parts += [f"{number:,} skipped ({reason})" for reason, number in self.skipped.items()]
        return ", ".join(parts)


@dataclass(frozen=True)
class FileState:
    """A file as it was written.

    Attributes:
        bytes: its length.
        sha256: in hexadecimal digits.
    """

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Reads a file to the end."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return cls(path.stat().st_size, digest.hexdigest())


@dataclass(frozen=True)
class Manifest:
    """What was made.

    Attributes:
        problem: name of the problem.
        options: the problem's options that decide what is in the files: names to JSON values.
        origin: where the data came from, in the problem's own words: names to JSON values.
        versions: of what made them, by the package's name.
        columns: the NumPy dtype of each stored feature.
        splits: sizes by the split's name.
        vocabulary: SHA-256 of the vocabulary; "" without one.
        files: every other file of the folder, by its path there.
        format: version of the layout of the files.
        overlaps: split -> split before it -> how many examples of the former stand in the latter;
            see `overlap.py`.
    """

    problem: str
    options: dict[str, Any]
    origin: dict[str, Any]
    versions: dict[str, str]
    columns: dict[str, str]
    splits: dict[str, SplitSizes]
    vocabulary: str
    files: dict[str, FileState]
    format: int = FORMAT
    overlaps: dict[str, dict[str, int]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Writes it into the folder, with a checksum of its own."""
        fields = asdict(self)
        fields["checksum"] = _checksum(fields)
        write_text(folder / FILE_NAME, json.dumps(fields, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads the manifest of a folder.

        Raises:
            DamagedDataError: there is none, or not one of this format, or it was changed.
        """
        path = folder / FILE_NAME
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields["format"] != FORMAT:
                raise DamagedDataError(
                    f"{path} has format {fields['format']}, this version of t2tp reads {FORMAT}"
                )
            written = fields.pop("checksum", None)  # not there in what was made before it was
            if written is not None and written != _checksum(fields):
                raise DamagedDataError(f"{path} has been changed since it was written")
            fields["splits"] = {name: SplitSizes(**s) for name, s in fields["splits"].items()}
            fields["files"] = {name: FileState(**s) for name, s in fields["files"].items()}
            return cls(**fields)
        except FileNotFoundError as error:
            raise DamagedDataError(f"{folder} has no {FILE_NAME}") from error
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, DamagedDataError):
                raise
            raise DamagedDataError(f"{path} is not a manifest: {error!r}") from error

    def check(self, folder: Path) -> None:
        """Checks the size of every file, and the contents of the small ones and of the checks.

        Raises:
            DamagedDataError: a file is missing or is not what was written; names it.
        """
        for name, wanted in self.files.items():
            is_read = name.endswith(CHECKS_END) or wanted.bytes <= _SMALL_BYTES
            check_file(folder / name, wanted, read_up_to=wanted.bytes if is_read else 0)

    def check_contents(self, folder: Path, num_workers: int, what: str) -> None:
        """Checks the contents of every file, whatever its size.

        Args:
            folder: where they are.
            num_workers: how many files are read at a time.
            what: the name of the data, for the progress.

        Raises:
            DamagedDataError: a file is missing or is not what was written; names it.
        """
        total = sum(wanted.bytes for wanted in self.files.values())
        done = 0

        def check_one(name: str) -> int:
            wanted = self.files[name]
            check_file(folder / name, wanted, read_up_to=wanted.bytes)
            return wanted.bytes

        with (
            Progress(total, f"checking the bytes of {what}") as progress,
            ThreadPoolExecutor(num_workers) as pool,
        ):
            for read in pool.map(check_one, self.files):
                done += read
                progress.show(done)

    def digest(self) -> str:
        """Returns what tells the data from others, wherever they came from: a SHA-256."""
        data = {
            name: state
            for name, state in self.files.items()
            if Path(name).name not in _ABOUT and not name.endswith(CHECKS_END)
        }
        return hashlib.sha256(repr(sorted(data.items())).encode()).hexdigest()

    def summary(self) -> str:
        """Says in a line for each split how much it holds."""
        return "\n".join(
            f"{name}: {sizes.summary()}{self._overlap(name)}" for name, sizes in self.splits.items()
        )

    def _overlap(self, split: str) -> str:
        found = self.overlaps.get(split, {})
        return "".join(f", {count:,} of them in {other} too" for other, count in found.items())


def write_options(folder: Path, options: Mapping[str, Any]) -> None:
    """Writes the options that data are made with into their folder."""
    write_text(folder / OPTIONS_FILE, json.dumps(options, indent=2) + "\n")


def read_options(folder: Path) -> dict[str, Any]:
    """Returns the options that data were made with; none if they are not known."""
    with contextlib.suppress(DamagedDataError):
        return Manifest.read(folder).options
    try:
        options = json.loads((folder / OPTIONS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # lost too, or there are no data yet
        return {}
    return options if isinstance(options, dict) else {}


def check_file(path: Path, wanted: FileState, read_up_to: int) -> None:
    """Checks that a file is what was written.

    Args:
        path: the file.
        wanted: as it was written.
        read_up_to: of a file with more bytes only the size is looked at.

    Raises:
        DamagedDataError: it is not.
    """
    if not path.is_file():
        raise DamagedDataError(f"{path} is missing")
    size = path.stat().st_size
    if size != wanted.bytes:
        raise DamagedDataError(f"{path} has {size} bytes, {wanted.bytes} were written")
    if size <= read_up_to and FileState.of(path) != wanted:
        raise DamagedDataError(
            f"{path} is not the file that the rest of the data was made with: "
            f"its SHA-256 is not {wanted.sha256}"
        )


def _checksum(fields: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a manifest's other fields."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
