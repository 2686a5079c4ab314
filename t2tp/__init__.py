"""t2tp: models in named dimensions, on any mesh of devices.

    import t2tp
    from t2tp import mtf

    program = t2tp.Program(step_fn, features, mesh_shape="data:2;model:4",
    layout="batch:data;d_ff:model")

TensorFlow and the names of this package are imported on first use. TensorFlow's messages are hidden
unless TF_CPP_MIN_LOG_LEVEL is set.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from t2tp.quiet import quiet_import

if TYPE_CHECKING:
    from collections.abc import Callable

    from t2tp.building.mesh import Mesh as Mesh
    from t2tp.checkpoint.program import restore_checkpoint as restore_checkpoint
    from t2tp.checkpoint.program import save_checkpoint as save_checkpoint
    from t2tp.hparam import HParams as HParams
    from t2tp.layout_check import check_layout as check_layout
    from t2tp.layout_report import explain as explain
    from t2tp.lowering.operation import Operation as Operation
    from t2tp.mesh.layout import Layout as Layout
    from t2tp.mesh.layout import LayoutError as LayoutError
    from t2tp.processes.cluster import Cluster as Cluster
    from t2tp.processes.cluster import connect as connect
    from t2tp.program.program import Feature as Feature
    from t2tp.program.program import Program as Program

    # `plan` is not imported: mypy cannot resolve names of `mtf` in circular imports.
    plan: Callable[..., Any]

_HOMES = {
    "Cluster": "t2tp.processes.cluster",
    "Feature": "t2tp.program.program",
    "HParams": "t2tp.hparam",
    "Layout": "t2tp.mesh.layout",
    "LayoutError": "t2tp.mesh.layout",
    "Mesh": "t2tp.program.program",
    "Operation": "t2tp.lowering.operation",
    "Program": "t2tp.program.program",
    "check_layout": "t2tp.layout_check",
    "connect": "t2tp.processes.cluster",
    "explain": "t2tp.layout_report",
    "mtf": "t2tp.mtf",
    "plan": "t2tp.trainer.planning",
    "restore_checkpoint": "t2tp.checkpoint.program",
    "save_checkpoint": "t2tp.checkpoint.program",
}


# Literal, because the pages' generator reads the source.
__all__ = [
    "Cluster",
    "Feature",
    "HParams",
    "Layout",
    "LayoutError",
    "Mesh",
    "Operation",
    "Program",
    "check_layout",
    "connect",
    "explain",
    "plan",
    "restore_checkpoint",
    "save_checkpoint",
]


def __dir__() -> list[str]:
    # Completion lists the names before any module is imported.
    return [*_HOMES, *(name for name in globals() if name.startswith("__"))]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 't2tp' has no attribute {name!r}")
    with quiet_import():
        home = importlib.import_module(_HOMES[name])
        return home if name == "mtf" else getattr(home, name)
