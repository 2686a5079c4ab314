"""The marker of a finished checkpoint: a directory without a valid marker is not a checkpoint.

The marker is the last file that a save writes. It lists the other files except `metrics.json`,
which later evaluations change.
"""

from __future__ import annotations

import hashlib
import json
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from t2tp.checkpoint import errors, files
from t2tp.hparam_limits import Limits
from t2tp.typed_files import Count, InvalidFileError, convert, parse_json, read_bytes

NAME = "FINISHED"
METADATA = "metadata.json"
VARIABLES = "variables"
FORMAT = 1

# Max seconds since 1970, at the end of the year 9999.
_MAX_SECONDS = 253402300799
# Max bytes of the index and of the metadata, which are read completely.
MAX_SMALL_BYTES = 256 << 20


@dataclass(frozen=True)
class FileRecord:
    """A checkpoint's file as it was written: number of bytes, and hash in hexadecimal.

    The hash of a data file is "", because the index has TensorFlow's checksum of each slice.
    """

    size: Count
    sha256: str = ""

    @classmethod
    def from_file(cls, path: Path) -> FileRecord:
        """Records a file's size and hash; reads the whole file."""
        content = read_bytes(path, MAX_SMALL_BYTES)
        return cls(len(content), hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class Marker:
    """The marker: a description of a finished checkpoint.

    Attributes:
      step: the training step.
      files: the files that the marker lists, by name.
      float16: names of the float16 tensors; see `t2tp.checkpoint.writing`.
      writers: the random id of the writer of each part. A process draws a new id for each save. A
        part is a group of slices that a process writes together (see `save`).
      saved_at: time of the save, in seconds since 1970.
    """

    step: Count
    files: dict[str, FileRecord]
    float16: tuple[str, ...]
    writers: tuple[str, ...]
    saved_at: Annotated[float, Limits(min=0, max=_MAX_SECONDS)]

    def __post_init__(self) -> None:
        """Raises ValueError if a file's name has a directory."""
        for name in self.files:
            if Path(name).name != name or "\0" in name:
                raise ValueError(f"{name!r} is not the plain name of a file")

    def write(self, directory: Path) -> None:
        """Writes the marker. Afterwards the save only renames the directory."""
        body = json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()
        files.write_synced(directory / NAME, body + b"\n" + _digest(body) + b"\n")

    @classmethod
    def read(cls, directory: Path) -> Marker:
        """Reads a directory's marker, and verifies the marker but not the other files.

        Raises:
          DamagedCheckpointError: the marker is missing or damaged.
          UnusableCheckpointError: the marker cannot be read, or the format is newer.
        """
        with errors.as_unusable(errors.checkpoint_in(directory)):
            content = cls._content(directory)
        body, _, digest = content.removesuffix(b"\n").rpartition(b"\n")
        if digest != _digest(body):
            raise _damaged(
                directory,
                f"its file {NAME} has changed; copy it again from where it is intact, or use"
                " another checkpoint.",
            )
        with errors.as_unusable(errors.checkpoint_in(directory)):
            return cls._of_fields(directory, parse_json(body, NAME, {"format": int}))

    @classmethod
    def _content(cls, directory: Path) -> bytes:
        try:
            return read_bytes(directory / NAME)
        except (FileNotFoundError, NotADirectoryError):
            reason = "it was never finished" if directory.is_dir() else "there is no such directory"
            raise errors.DamagedCheckpointError(
                f"{directory} is not a checkpoint: {reason} (no file {NAME} in it)."
            ) from None

    @classmethod
    def _of_fields(cls, directory: Path, fields: dict[str, Any]) -> Marker:
        version = fields.pop("format", None) or 0
        if version > FORMAT:
            raise errors.NewerFormatError(
                f"{errors.checkpoint_in(directory)} has format {version}; this version of t2tp"
                f" reads format {FORMAT}: use at least the version that saved it, or move this"
                " checkpoint elsewhere to resume from the checkpoint before it."
            )
        if version != FORMAT:
            raise InvalidFileError(f"{NAME}: there is no format {version}")
        return convert(fields, cls, NAME)

    @classmethod
    def finished_step(cls, directory: Path) -> int | None:
        """Returns the step of a finished checkpoint; None if it is damaged.

        Raises:
          UnusableCheckpointError: the checkpoint cannot be read, or its format is newer.
        """
        try:
            marker = cls.read(directory)
            marker.check_files(directory)
        except errors.DamagedCheckpointError:
            return None
        return marker.step

    def check_files(self, directory: Path) -> None:
        """Checks the sizes of all files, and the content of the index and the metadata.

        TensorFlow does not notice a flipped bit in an index. The index and the metadata are small,
        so they are always hashed. The content of data files is checked when it is read.

        Raises:
          DamagedCheckpointError: a file is missing or has changed.
          UnusableCheckpointError: a file cannot be read.
        """
        with errors.as_unusable(errors.checkpoint_in(directory)):
            for name, record in self.files.items():
                self._check_size(directory, name, record.size)
                if record.sha256 and FileRecord.from_file(directory / name) != record:
                    raise wrong_content(directory, name)

    def _check_size(self, directory: Path, name: str, written: int) -> None:
        try:
            state = (directory / name).stat()
        except FileNotFoundError:
            raise _damaged(directory, f"its file {name} is missing.") from None
        if not stat.S_ISREG(state.st_mode):
            raise _damaged(directory, f"its file {name} is not a regular file.")
        if state.st_size != written:
            had = f"its file {name} has {state.st_size} bytes, {written} were written."
            raise _damaged(directory, had)


def wrong_content(directory: Path, name: str) -> errors.DamagedCheckpointError:
    """Returns the error about a file with changed content."""
    return _damaged(directory, f"the content of its file {name} has changed since it was written.")


def _damaged(directory: Path, what: str) -> errors.DamagedCheckpointError:
    return errors.DamagedCheckpointError(f"{errors.checkpoint_in(directory)} is damaged: {what}")


def data_file(number: int, count: int) -> str:
    """Returns the name of data file `number` of `count`."""
    return f"{VARIABLES}.data-{number:05d}-of-{count:05d}"


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
