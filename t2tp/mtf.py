"""The API of named dimensions: all names of mesh-tensorflow, some replaced by t2tp's operations.

Models are written with `from t2tp import mtf`: `mtf.Dimension`, `mtf.Tensor`, `mtf.einsum`,
`mtf.layers.dense`. Operations that are wrong in mesh-tensorflow are replaced by t2tp's operations
of the same name. `mtf.layers`, `mtf.optimize` and `mtf.beam_search` use the replacements too.
Gradients that are wrong are replaced on mesh-tensorflow's classes (`t2tp.ops.gradients`). The files
of the installed package are not changed.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import TYPE_CHECKING, Any

from t2tp import upstream
from t2tp.building.role import Role  # noqa: F401
from t2tp.ops import gradients as _  # noqa: F401
from t2tp.ops.activations import relu  # noqa: F401
from t2tp.ops.cast import cast  # noqa: F401
from t2tp.ops.cumsum import cumsum  # noqa: F401
from t2tp.ops.dropout import dropout  # noqa: F401
from t2tp.ops.einsum import einsum  # noqa: F401
from t2tp.ops.gather import gather  # noqa: F401
from t2tp.ops.import_tensor import import_fully_replicated, import_tf_tensor  # noqa: F401
from t2tp.ops.mean import reduce_mean  # noqa: F401
from t2tp.ops.random_tensors import RandomOperation, random_normal, random_uniform  # noqa: F401
from t2tp.ops.recompute import recompute_grad  # noqa: F401
from t2tp.ops.slicewise import mtf_slice as slice  # noqa: F401
from t2tp.ops.slicewise import slicewise, unstack  # noqa: F401
from t2tp.ops.softmax import log_softmax, reduce_logsumexp, softmax  # noqa: F401
from t2tp.ops.top_k import argmax, top_k  # noqa: F401
from t2tp.ops.variables.assign import Assign, assign, assign_add, assign_sub  # noqa: F401
from t2tp.ops.variables.zero_weights import get_variable, gradients  # noqa: F401
from t2tp.ops.where import where  # noqa: F401
from t2tp.ops.while_loop import while_loop  # noqa: F401

if TYPE_CHECKING:
    from t2tp.upstream import beam_search, layers, ops, optimize

    def __getattr__(name: str) -> Any: ...  # mesh-tensorflow has no type hints


# Everything else is mesh-tensorflow's.
globals().update(
    (name, value)
    for name, value in vars(upstream).items()
    if not name.startswith("_") and name not in globals()
)


def _on_our_operations(module: types.ModuleType) -> types.ModuleType:
    """Loads a mesh-tensorflow module once more; the new instance uses `t2tp.mtf`'s operations."""
    spec = importlib.util.spec_from_file_location(
        f"{__name__}.{module.__name__.rpartition('.')[2]}", module.__file__
    )
    assert spec is not None and spec.loader is not None
    instance = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(instance)
    vars(instance)["mtf"] = sys.modules[__name__]
    return instance


if not TYPE_CHECKING:
    layers = _on_our_operations(upstream.layers)
    optimize = _on_our_operations(upstream.optimize)
    vars(optimize)["layers"] = layers
    beam_search = _on_our_operations(upstream.beam_search)
    ops = types.ModuleType(f"{__name__}.ops", upstream.ops.__doc__)
    vars(ops).update(
        (name, globals().get(name, value))
        for name, value in vars(upstream.ops).items()
        if not name.startswith("__")
    )
