"""Imports of packages that only some features need."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def optional_import(
    advice: str, error: Callable[[str], Exception] = ModuleNotFoundError
) -> Iterator[None]:
    """Raises an error with advice if an import inside the context finds no module.

    Args:
      advice: the message: which feature needs the package, and how to install it.
      error: type of the error.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise error(advice) from missing
