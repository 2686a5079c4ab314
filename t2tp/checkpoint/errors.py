"""What goes wrong with checkpoints, in words for users."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf


class UnusableCheckpointError(OSError):
    """A folder is not a finished checkpoint, or the checkpoint is damaged or cannot be read."""


class NewerFormatError(UnusableCheckpointError):
    """The checkpoint is whole, and of a format that only later versions of t2tp read."""


@contextlib.contextmanager
def as_unusable(what: str) -> Iterator[None]:
    """While this is active, errors of reading become `UnusableCheckpointError`s.

    What TensorFlow has no memory for is not the checkpoint's fault, and stays as it is.

    Args:
      what: is read, as the beginning of a sentence.
    """
    try:
        yield
    except (UnusableCheckpointError, tf.errors.ResourceExhaustedError):
        raise
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.NotFoundError) as error:
        raise UnusableCheckpointError(
            f"{what} is damaged: its content is not what was saved ({reason(error)})."
        ) from error
    except tf.errors.OpError as error:
        raise UnusableCheckpointError(f"{what} cannot be read: {reason(error)}.") from error
    except OSError as error:
        raise UnusableCheckpointError(f"{what} cannot be read: {error}.") from error


def checkpoint_in(folder: Path) -> str:
    """What sentences about a checkpoint begin with."""
    return f"The checkpoint {folder}"


def reason(error: tf.errors.OpError) -> str:
    """What an operation's error says, without TensorFlow's names of nodes around it."""
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", error.message, flags=re.DOTALL)
