"""Pauses Python's cyclic garbage collector while long-lived objects are created."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disables the cyclic garbage collector while the context is active.

    Imports, and building and tracing a graph, create many objects that stay. Each collection visits
    all of them. This took a sixth of the time of TensorFlow's import. With variables for 64
    devices, it took as long as the rest of tracing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
