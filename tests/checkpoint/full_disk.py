"""A disk that fills up."""

from __future__ import annotations

import resource
from contextlib import contextmanager


@contextmanager
def files_of_at_most(size: int):
    """A full disk that needs no root: writing beyond `size` bytes of a file fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
