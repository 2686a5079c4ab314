"""Sets attributes of an object for the time of a context."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def attributes(owner: object, **values: Any) -> Iterator[None]:
    """Inside the context, attributes of `owner` have these values; then their former values."""
    before = {name: getattr(owner, name) for name in values}
    vars(owner).update(values)
    try:
        yield
    finally:
        vars(owner).update(before)
