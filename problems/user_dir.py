"""Imports a directory with a user's own problems, models and hparams sets (--t2t_usr_dir)."""

import ast
import contextlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from os import PathLike
from pathlib import Path
from types import ModuleType

_imported: list[Path] = []


def import_user_dir(directory: str | PathLike[str]) -> ModuleType:
    """Imports a directory as a package, to register its problems, models and hparams sets.

    The package has the directory's name, and its `__init__.py` imports the modules. If this file is
    missing or has no code, every module of the directory is imported. `sys.path` is not changed, so
    that files next to the directory cannot shadow installed packages.

    Raises:
      NotADirectoryError: there is no such directory.
      ValueError: the directory's name is no valid package name, or another package has this name;
        or a module imports tensor2tensor.
    """
    path = Path(directory).expanduser().resolve()
    if path.is_file():
        raise NotADirectoryError(
            f"t2t_usr_dir={directory} is a file: name its directory, {Path(directory).parent}"
        )
    if not path.is_dir():
        raise NotADirectoryError(f"t2t_usr_dir={directory}: there is no such directory")
    if not path.name.isidentifier():
        raise ValueError(
            f"t2t_usr_dir={directory}: Python cannot import a directory named {path.name!r};"
            f" name it with letters, digits and _, as in {_importable(path.name)!r}"
        )
    _check_name_is_free(path)
    with _refusing_tensor2tensor():
        package = sys.modules.get(path.name) or _import_package(path)
        if not _has_code(path / "__init__.py"):
            for module in sorted(path.glob("*.py")):
                if module.stem != "__init__":
                    importlib.import_module(f"{path.name}.{module.stem}")
    if path not in _imported:
        _imported.append(path)
    return package


def imported_user_dirs() -> list[Path]:
    """Returns the imported directories; worker processes import them before unpickling."""
    return list(_imported)


@contextlib.contextmanager
def _refusing_tensor2tensor() -> Iterator[None]:
    """Says what to write instead of an import of tensor2tensor, which is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tensor2tensor":
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"{place.filename}, line {place.lineno}: t2tp does not use tensor2tensor; a Problem"
            " class before and after is in docs/coming_from_tensor2tensor.md#a-problem-class"
        ) from error


def _check_name_is_free(path: Path) -> None:
    module = sys.modules.get(path.name)
    spec = importlib.util.find_spec(path.name) if module is None else module.__spec__
    if module is None and spec is None:
        return
    locations = list((spec and spec.submodule_search_locations) or ())
    if path not in [Path(location).resolve() for location in locations]:
        other = ", ".join(locations) or (spec and spec.origin) or "Python itself"
        raise ValueError(
            f"t2t_usr_dir={path}: another package is named {path.name} ({other}); give the"
            " directory another name"
        )


def _import_package(path: Path) -> ModuleType:
    spec: ModuleSpec | None
    if (path / "__init__.py").is_file():
        spec = importlib.util.spec_from_file_location(
            path.name, path / "__init__.py", submodule_search_locations=[str(path)]
        )
    else:
        spec = ModuleSpec(path.name, None, is_package=True)
        spec.submodule_search_locations = [str(path)]
    assert spec is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[path.name] = package
    if spec.loader is None:
        return package
    try:
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules[path.name]
        raise
    return package


def _has_code(init: Path) -> bool:
    """Whether a file exists and has more than comments and a docstring."""
    if not init.is_file():
        return False
    module = ast.parse(init.read_bytes(), str(init))
    return len(module.body) > (ast.get_docstring(module) is not None)


def _importable(name: str) -> str:
    letters = "".join(letter if letter.isalnum() else "_" for letter in name)
    return letters if letters.isidentifier() else f"_{letters}"
