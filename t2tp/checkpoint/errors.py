"""Errors of checkpoints."""

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from t2tp.typed_files import InvalidFileError

# Error codes of paths that are missing or not files.
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


class UnusableCheckpointError(OSError):
    """A checkpoint cannot be used.

    The subclasses mean that it is damaged (`DamagedCheckpointError`) or has a newer format
    (`NewerFormatError`). An error of this class itself means that the checkpoint cannot be read at
    the moment; it may be intact.
    """


class DamagedCheckpointError(UnusableCheckpointError):
    """A directory is not a valid checkpoint: it is unfinished, or its files have changed."""


class NewerFormatError(UnusableCheckpointError):
    """The checkpoint is intact, but only later versions of t2tp read its format."""


class DifferentCheckpointsError(ValueError):
    """Processes have opened different checkpoints to restore; all of them raise this error."""


@contextlib.contextmanager
def as_unusable(what: str) -> Iterator[None]:
    """Converts reading errors to `UnusableCheckpointError`s while the context is active.

    A missing file, or a path that is not a file, proves damage. Other file-system errors do not:
    missing permissions, a server that does not answer, a failing disk. TensorFlow's out-of-memory
    errors are not converted, because the checkpoint is not to blame. `what` begins the message.
    """
    try:
        yield
    except (UnusableCheckpointError, tf.errors.ResourceExhaustedError):
        raise
    except tf.errors.OpError as error:
        raise UnusableCheckpointError(f"{what} cannot be read: {reason(error)}.") from error
    except OSError as error:
        kind = DamagedCheckpointError if error.errno in _NO_FILE else UnusableCheckpointError
        raise kind(f"{what} cannot be read: {error}.") from error
    except InvalidFileError as error:
        raise DamagedCheckpointError(f"{what} is damaged: {error}.") from error


def checkpoint_in(directory: Path) -> str:
    """Returns the subject of messages about a checkpoint."""
    return f"The checkpoint {directory}"


def reason(error: tf.errors.OpError) -> str:
    """Returns an operation's error message without TensorFlow's node names."""
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", error.message, flags=re.DOTALL)
