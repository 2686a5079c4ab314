"""Makes `import mesh_tensorflow` import `t2tp.mtf`, for existing programs and libraries.

    import t2tp.mtf_compat  # before the first import of mesh_tensorflow
    import mesh_tensorflow as mtf
    from mesh_tensorflow import transformer

From then on `mesh_tensorflow` is `t2tp.mtf`, and its modules `layers`, `ops`, `optimize` and
`beam_search` are those of `t2tp.mtf`. Other packages, such as `mesh_tensorflow.transformer`,
`auto_mtf` and `bert`, are the installed packages, but they use t2tp's operations. While they are
imported, stand-ins replace the names that TensorFlow has removed. To run a graph, use
`t2tp.Program`: see docs/porting.md.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import NoReturn

from t2tp import mtf, upstream

_PACKAGE = "mesh_tensorflow"

# Maps import names to pip names, where these differ.
_DISTRIBUTIONS = {
    "gin": "gin-config",
    "pkg_resources": "'setuptools<81'",
    "tensorflow_probability": "tensorflow-probability",
}


class _Loader(importlib.machinery.SourceFileLoader):
    """Executes a module of the installed mesh-tensorflow, with stand-ins."""

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == f"{_PACKAGE}.auto_mtf":
            _refuse_ortools_after_tensorflow()
        try:
            with upstream.stand_ins():
                super().exec_module(module)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing in ("", "tensorflow", _PACKAGE):
                raise
            raise ModuleNotFoundError(
                f"{module.__name__} needs {missing}, which is not installed: pip install"
                f" {_DISTRIBUTIONS.get(missing, missing)}",
                name=missing,
            ) from error


def _refuse_ortools_after_tensorflow() -> None:
    """Raises an error, because loading OR-Tools now would end in a segmentation fault."""
    solver = "ortools.sat.python.cp_model"
    if solver not in sys.modules and importlib.util.find_spec("ortools") is not None:
        raise ImportError(
            f"mesh_tensorflow.auto_mtf needs `import {solver}` as the first line of the program:"
            " loaded after TensorFlow, OR-Tools crashes."
        )


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules inside the installed mesh-tensorflow."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec with the custom loader."""
        if not fullname.startswith(f"{_PACKAGE}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            return spec
        return importlib.util.spec_from_file_location(
            fullname,
            spec.origin,
            loader=_Loader(fullname, spec.origin),
            submodule_search_locations=spec.submodule_search_locations,
        )


def _refuse_lowering(*args: object, **kwargs: object) -> NoReturn:
    """Raises an error; replaces the functions with which programs lower a graph themselves."""
    raise NotImplementedError(
        "A graph is lowered and run by t2tp.Program(step_fn, features, mesh_shape=..., layout=...),"
        " where step_fn(mesh, features) builds it: mtf.Lowering and the mesh implementations of"
        " mesh-tensorflow are not used. See docs/porting.md."
    )


def _package() -> types.ModuleType:
    """Returns the package `mesh_tensorflow` with the names of `t2tp.mtf`."""
    spec = importlib.machinery.PathFinder.find_spec(_PACKAGE)
    assert spec is not None  # t2tp.upstream has imported it
    package = importlib.util.module_from_spec(spec)
    vars(package).update(
        (name, value) for name, value in vars(mtf).items() if not name.startswith("__")
    )
    vars(package)["Lowering"] = _refuse_lowering
    return package


def _install() -> None:
    """Replaces mesh-tensorflow's modules by t2tp's for all later imports."""
    package = _package()
    replacements = {
        _PACKAGE: package,
        f"{_PACKAGE}.beam_search": mtf.beam_search,
        f"{_PACKAGE}.layers": mtf.layers,
        f"{_PACKAGE}.ops": mtf.ops,
        f"{_PACKAGE}.ops_with_redefined_builtins": package,
        f"{_PACKAGE}.optimize": mtf.optimize,
    }
    for implementation, name in (
        ("placement_mesh_impl", "PlacementMeshImpl"),
        ("simd_mesh_impl", "SimdMeshImpl"),
    ):
        module = types.ModuleType(f"{_PACKAGE}.{implementation}")
        vars(module)[name] = _refuse_lowering
        vars(package)[implementation] = module
        replacements[module.__name__] = module
    for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
        del sys.modules[name]  # modules that use mesh-tensorflow's own operations
    sys.modules.update(replacements)
    sys.meta_path.insert(0, _Finder())


_install()
