"""A user's own problems, models and hparams sets: a folder that is imported (--t2t_usr_dir)."""

from __future__ import annotations

import importlib
import sys
from os import PathLike
from pathlib import Path
from types import ModuleType


def import_user_dir(folder: str | PathLike[str]) -> ModuleType:
    """Imports a folder as a package; what its modules register can then be named.

    The package has the folder's name, and its `__init__.py` imports the modules. Without an
    `__init__.py` every module of the folder is imported.

    Args:
        folder: the folder. The one it lies in is put on Python's path for good, so that the worker
            processes which make data find the package too.

    Returns:
        The package.

    Raises:
        NotADirectoryError: there is no such folder.
        ValueError: its name cannot be that of a package, or another package has it.
    """
    path = Path(folder).expanduser().resolve()
    if not path.is_dir():
        raise NotADirectoryError(f"t2t_usr_dir={folder}: there is no such folder")
    if not path.name.isidentifier():
        raise ValueError(
            f"t2t_usr_dir={folder}: Python cannot import a folder named {path.name!r}; name it "
            f"with letters, digits and _, as in {_importable(path.name)!r}"
        )
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    importlib.invalidate_caches()
    package = importlib.import_module(path.name)
    if path not in [Path(place).resolve() for place in package.__path__]:
        raise ValueError(
            f"t2t_usr_dir={folder}: another package is named {path.name}, in "
            f"{list(package.__path__)}; give the folder another name"
        )
    if not (path / "__init__.py").is_file():
        for module in sorted(path.glob("*.py")):
            importlib.import_module(f"{path.name}.{module.stem}")
    return package


def _importable(name: str) -> str:
    kept = "".join(letter if letter.isalnum() else "_" for letter in name)
    return kept if kept.isidentifier() else f"_{kept}"
