"""Errors that end a program with one sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class UsageError(ValueError):
    """What the user asked for cannot be done; `str()` is the sentence that says why."""


class LostError(RuntimeError):
    """Another process is gone, or does not come; `str()` says which, and how to go on."""


@contextlib.contextmanager
def as_usage_error(*kinds: type[Exception]) -> Iterator[None]:
    """While this is active, exceptions of these kinds become a `UsageError`: the user's to mend."""
    try:
        yield
    except kinds as error:
        raise UsageError(str(error)) from error
