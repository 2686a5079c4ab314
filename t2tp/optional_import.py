"""Imports of packages that only some features need."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def optional_import(
    advice: str, error: Callable[[str], Exception] = ModuleNotFoundError
) -> Iterator[None]:
    """Raises `error` with advice if an import inside the context finds no module.

    The advice says which feature needs the package, and how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise error(advice) from missing
