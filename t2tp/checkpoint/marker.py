"""The marker of a finished checkpoint: the last file written, and what the others must be."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from t2tp.checkpoint import files
from t2tp.checkpoint.errors import (
    NewerFormatError,
    UnusableCheckpointError,
    as_unusable,
    checkpoint_in,
)

NAME = "FINISHED"
METADATA = "metadata.json"
VARIABLES = "variables"
FORMAT = 1


@dataclass(frozen=True)
class FileRecord:
    """What a file of a checkpoint was when it was written.

    Attributes:
      size: bytes.
      sha256: of its content, in hexadecimal.
    """

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """Reads the file."""
        return cls(path.stat().st_size, files.sha256(path))


@dataclass(frozen=True)
class Marker:
    """What a finished checkpoint says of itself.

    Attributes:
      step: the training step that was saved.
      files: the other files of the folder, by name.
      float16: the names of the tensors that are float16; see `t2tp.checkpoint.writing`.
      writers: for each process, a word that no other save has.
      saved_at: when, in seconds since 1970; None if that was not noted yet when it was saved.
    """

    step: int
    files: dict[str, FileRecord]
    float16: tuple[str, ...]
    writers: tuple[str, ...]
    saved_at: float | None

    def write(self, folder: Path) -> None:
        """Writes the marker, after which the folder needs nothing but its final name."""
        body = json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()
        files.write_synced(folder / NAME, body + b"\n" + _digest(body) + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Marker:
        """Reads the folder's marker and checks the marker itself, not the other files.

        Raises:
          UnusableCheckpointError: there is no marker, it is damaged or cannot be read.
          NewerFormatError: it is of a newer format.
        """
        with as_unusable(checkpoint_in(folder)):
            content = cls._content(folder)
        damaged = UnusableCheckpointError(f"{checkpoint_in(folder)} is damaged: its file {NAME}.")
        body, _, digest = content.removesuffix(b"\n").rpartition(b"\n")
        if digest != _digest(body):
            raise damaged
        try:
            return cls._of_fields(folder, json.loads(body))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise damaged from error

    @classmethod
    def _content(cls, folder: Path) -> bytes:
        try:
            return (folder / NAME).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            what = "it was never finished" if folder.is_dir() else "there is no such folder"
            raise UnusableCheckpointError(
                f"{folder} is not a checkpoint: {what} (no file {NAME} in it)."
            ) from None

    @classmethod
    def _of_fields(cls, folder: Path, fields: dict[str, Any]) -> Marker:
        version = fields["format"]
        if version > FORMAT:
            raise NewerFormatError(
                f"{checkpoint_in(folder)} has format {version}; this version of t2tp reads format"
                f" {FORMAT}: use a version as new as the one that saved it, or move it elsewhere to"
                " go on from the checkpoint before it."
            )
        if version != FORMAT:
            raise ValueError(f"there is no format {version}")
        return cls(
            step=fields["step"],
            files={name: FileRecord(**record) for name, record in fields["files"].items()},
            float16=tuple(fields["float16"]),
            writers=tuple(fields["writers"]),
            saved_at=fields.get("saved_at"),
        )

    def check_sizes(self, folder: Path) -> None:
        """Checks that every file is there with its size, and the content of all but the data.

        The index and the metadata are small, and TensorFlow reads an index with a wrong bit in
        it without noticing, so these are always read.

        Raises:
          UnusableCheckpointError: a file is missing, not what was written, or cannot be read.
        """
        with as_unusable(checkpoint_in(folder)):
            for name, record in self.files.items():
                self._check_size(folder, name, record.size)
                if not name.startswith(f"{VARIABLES}.data-"):
                    self._check_content(folder, name)

    def check_contents(self, folder: Path) -> None:
        """Reads every file and compares it with what was written.

        Raises:
          UnusableCheckpointError: a file is missing, not what was written, or cannot be read.
        """
        self.check_sizes(folder)
        with as_unusable(checkpoint_in(folder)):
            for name in self.files:
                self._check_content(folder, name)

    def _check_size(self, folder: Path, name: str, written: int) -> None:
        path = folder / name
        if not path.is_file():
            raise UnusableCheckpointError(
                f"{checkpoint_in(folder)} is damaged: its file {name} is missing."
            )
        size = path.stat().st_size
        if size != written:
            raise UnusableCheckpointError(
                f"{checkpoint_in(folder)} is damaged: its file {name} has {size} bytes,"
                f" {written} were written."
            )

    def _check_content(self, folder: Path, name: str) -> None:
        if files.sha256(folder / name) != self.files[name].sha256:
            raise UnusableCheckpointError(
                f"{checkpoint_in(folder)} is damaged: the content of its file {name} is not what"
                " was written."
            )


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
