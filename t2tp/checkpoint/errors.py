"""Errors of checkpoints, with messages for users."""

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from t2tp.untrusted_json import UntrustedFileError

# Errors of a path that is not a file.
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


class UnusableCheckpointError(OSError):
    """A checkpoint cannot be used.

    It is damaged (`DamagedCheckpointError`), of a newer format (`NewerFormatError`), or, if the
    error is of this type itself, it cannot be read at the moment and may be intact.
    """


class DamagedCheckpointError(UnusableCheckpointError):
    """A directory is not a valid checkpoint: it is unfinished, or its files are proven damaged."""


class NewerFormatError(UnusableCheckpointError):
    """The checkpoint is intact, but only later versions of t2tp read its format."""


class DifferentCheckpointsError(ValueError):
    """Processes of a restore have opened different checkpoints; all of them raise it."""


@contextlib.contextmanager
def as_unusable(what: str) -> Iterator[None]:
    """Converts errors of reading to `UnusableCheckpointError`s while the context is active.

    A missing file, or a path that is not a file, proves damage. Other file-system errors prove
    nothing: missing permissions, a server that does not answer, a failing disk. TensorFlow's
    out-of-memory errors are not converted, because the checkpoint is not to blame.

    Args:
      what: the thing that is read, as the beginning of a sentence.
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
    except UntrustedFileError as error:
        raise DamagedCheckpointError(f"{what} is damaged: {error}.") from error


def checkpoint_in(directory: Path) -> str:
    """Returns the beginning of sentences about a checkpoint."""
    return f"The checkpoint {directory}"


def reason(error: tf.errors.OpError) -> str:
    """Returns an operation's error message without TensorFlow's node names."""
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", error.message, flags=re.DOTALL)
