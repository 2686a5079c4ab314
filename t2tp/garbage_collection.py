"""Pauses Python's search for cycles of garbage while objects are made that stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """While this is active, Python does not look for cycles among all that there is.

    Imports, and building and tracing a graph, make many objects that stay. Each search visits them
    all: a sixth of the time of TensorFlow's import and, with the variables of 64 devices, as long
    as the rest of tracing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
