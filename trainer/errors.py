"""Errors that end a program with one sentence and an exit code."""

import contextlib
import os
import re
import signal
from collections.abc import Iterator

from t2tp.processes.process_spec import LOST_EXIT_CODE

# The exit code of a program that a signal ended is this plus the signal's number, as in shells.
SIGNALLED = 128


class UsageError(ValueError):
    """The request is invalid; `str()` is a sentence that says why."""

    exit_code = 2


class FailedError(RuntimeError):
    """The request is valid and failed; `str()` is a sentence that says why."""

    exit_code = 1


class ProcessLostError(RuntimeError):
    """Another process was lost or did not join; `str()` says which, and how to resume."""

    exit_code = LOST_EXIT_CODE


class Interrupted(KeyboardInterrupt):
    """A signal ended the program; `str()` names the saved step, or says how to resume.

    Attributes:
      exit_code: 128 + the signal's number, as in shells.
    """

    def __init__(self, message: str, signal_number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.exit_code = SIGNALLED + signal_number


@contextlib.contextmanager
def as_usage_error(*kinds: type[Exception]) -> Iterator[None]:
    """Converts exceptions of these types inside the context to a `UsageError`.

    BrokenPipeError is not converted, because it means that the reader of stdout has ended.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except kinds as error:
        raise UsageError(sentence(error)) from error


def sentence(error: Exception) -> str:
    """Returns an error's message; an error of the system begins with the file, as in shells."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def first_line(error: Exception) -> str:
    """Returns the line of an error's message that has the reason."""
    text = str(error).strip()
    # TensorFlow's errors of a graph begin with the place of the failed operation.
    in_graph = re.search(r"^(.+)\n\t \[\[\{\{node", text, re.MULTILINE)
    return in_graph[1] if in_graph else next(iter(text.splitlines()), type(error).__name__)
