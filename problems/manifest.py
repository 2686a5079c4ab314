"""What lies in a problem's folder: counts, and the size and SHA-256 of every file.

It is written last, so a folder with a manifest is complete; reading it back finds a file that was
cut short, is missing, or does not belong to the others.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE_NAME = "manifest.json"

# Raised when the layout of the files changes, so that old data is refused and not misread.
FORMAT = 1

# Checking reads files up to this size, and of larger ones looks at the size only.
_SMALL_BYTES = 4 << 20


class DamagedDataError(ValueError):
    """The files of a prepared problem are not what its manifest says."""


@dataclass(frozen=True)
class SplitSizes:
    """How much a split holds.

    Attributes:
        documents: number of documents.
        tokens: number of tokens, the ends of documents included.
        bytes: length of the text in UTF-8.
    """

    documents: int
    tokens: int
    bytes: int


@dataclass(frozen=True)
class FileState:
    """A file as it was written.

    Attributes:
        bytes: its length.
        sha256: in hexadecimal digits.
    """

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What was made.

    Attributes:
        problem: name of the problem.
        origin: where the data came from, in the problem's own words: names to JSON values.
        splits: sizes by the split's name.
        files: every other file of the folder, by its path there.
        format: version of the layout of the files.
    """

    problem: str
    origin: dict[str, Any]
    splits: dict[str, SplitSizes]
    files: dict[str, FileState]
    format: int = FORMAT

    @classmethod
    def of_folder(
        cls, folder: Path, problem: str, origin: dict[str, Any], splits: dict[str, SplitSizes]
    ) -> Manifest:
        """Makes the manifest of the files that lie in a folder."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = {path.relative_to(folder).as_posix(): _state(path) for path in paths}
        return cls(problem, origin, splits, files)

    def write(self, folder: Path) -> None:
        """Writes it into the folder."""
        text = json.dumps(asdict(self), indent=2)
        (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads the manifest of a folder.

        Raises:
            DamagedDataError: there is none, or not one of this format.
        """
        path = folder / FILE_NAME
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields["format"] != FORMAT:
                raise DamagedDataError(
                    f"{path} has format {fields['format']}, this version of t2tp reads {FORMAT}"
                )
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
        """Checks the size of every file, and the contents of the small ones.

        Raises:
            DamagedDataError: a file is missing or is not what was written; names it.
        """
        for name, wanted in self.files.items():
            path = folder / name
            if not path.is_file():
                raise DamagedDataError(f"{path} is missing")
            size = path.stat().st_size
            if size != wanted.bytes:
                raise DamagedDataError(f"{path} has {size} bytes, {wanted.bytes} were written")
            if size <= _SMALL_BYTES and _state(path) != wanted:
                raise DamagedDataError(
                    f"{path} is not the file that the rest of the data was made with: "
                    f"its SHA-256 is not {wanted.sha256}"
                )

    def summary(self) -> str:
        """Says in a line for each split how much it holds."""
        return "\n".join(
            f"{name}: {sizes.documents:,} documents, {sizes.tokens:,} tokens, "
            f"{sizes.bytes:,} bytes of text"
            for name, sizes in self.splits.items()
        )


def _state(path: Path) -> FileState:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return FileState(path.stat().st_size, digest.hexdigest())
