"""A context manager that sets attributes of an object temporarily."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def set_temporarily(owner: object, **values: Any) -> Iterator[None]:
    """Sets attributes of `owner` inside the context, and restores them afterwards."""
    before = {name: getattr(owner, name) for name in values}
    vars(owner).update(values)
    try:
        yield
    finally:
        vars(owner).update(before)
