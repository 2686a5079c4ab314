"""Imports of packages that only some features need."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def optional_import(
    advice: str, error: Callable[[str], Exception] = ModuleNotFoundError
) -> Iterator[None]:
    """Raises an error with advice if an import inside the context finds no module.

    Args:
      advice: the error's sentence. It names the feature that needs the package, and says how to
        install the package.
      error: the type of the error.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise error(advice) from missing
