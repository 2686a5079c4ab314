"""The one door to mesh-tensorflow: `from t2tp import mtf` gives its whole language on today's
TensorFlow.

mesh-tensorflow 0.1.21 is what a model author writes in: `mtf.Dimension`, `mtf.Tensor`,
`mtf.einsum`, `mtf.layers.dense`. It was last released for TensorFlow 2.11 and looks, while it is
imported, for names that have moved or gone since:

* `tensorflow.compat.v1.estimator` (gone in 2.16). Only two of its classes are named, as base
  classes, and both live on in `tf.compat.v1.train`.
* `register_tensor_conversion_function` and `register_dense_tensor_like_type` in
  `tensorflow.python.framework.ops` (moved, respectively dropped).

The stand-ins are in place only while the package is imported, and are taken away again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.python.framework import ops as _framework_ops
from tensorflow.python.framework import tensor_conversion_registry as _conversion_registry


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """Lends mesh-tensorflow the TensorFlow names that it misses."""
    estimator = types.ModuleType("tensorflow.compat.v1.estimator")
    for base_class in ("CheckpointSaverListener", "SessionRunHook"):
        setattr(estimator, base_class, getattr(tf1.train, base_class))
    lent = [
        (tf1, "estimator", estimator),
        (
            _framework_ops,
            "register_tensor_conversion_function",
            _conversion_registry.register_tensor_conversion_function,
        ),
        (_framework_ops, "register_dense_tensor_like_type", lambda _: None),
    ]
    lent = [(owner, name, value) for owner, name, value in lent if not hasattr(owner, name)]
    for owner, name, value in lent:
        setattr(owner, name, value)
    sys.modules.setdefault(estimator.__name__, estimator)
    try:
        yield
    finally:
        for owner, name, _ in lent:
            delattr(owner, name)
        if sys.modules.get(estimator.__name__) is estimator:
            del sys.modules[estimator.__name__]


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # mesh-tensorflow has no type hints


with _stand_ins():
    from mesh_tensorflow import *  # noqa: F403
    from mesh_tensorflow import (  # noqa: F401
        beam_search,
        layers,
        ops,
        optimize,
        placement_mesh_impl,
        utils,
    )


def _on_our_operations(module: types.ModuleType) -> types.ModuleType:
    """A second instance of a mesh-tensorflow module that takes its operations from here.

    Its layers, optimizers and searches then use what follows below instead of what it mends; the
    installed module itself stays as it is.
    """
    spec = importlib.util.spec_from_file_location(
        f"{__name__}.{module.__name__.rpartition('.')[2]}", module.__file__
    )
    assert spec is not None and spec.loader is not None
    instance = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(instance)
    vars(instance)["mtf"] = sys.modules[__name__]
    return instance


# In the place of mesh-tensorflow's operations of the same names. These modules are written in the
# language above, so they come last; to a type checker, which has no types of it, they are nothing.
if not TYPE_CHECKING:
    from t2tp.ops.cumsum import cumsum  # noqa: F401
    from t2tp.ops.dropout import dropout  # noqa: F401
    from t2tp.ops.extrema import maximum, minimum, reduce_max, reduce_min  # noqa: F401
    from t2tp.ops.gather import gather  # noqa: F401
    from t2tp.ops.many_outputs import slicewise, unstack  # noqa: F401
    from t2tp.ops.recompute import recompute_grad  # noqa: F401
    from t2tp.ops.top_k import top_k  # noqa: F401
    from t2tp.ops.where import where  # noqa: F401
    from t2tp.ops.while_loop import while_loop  # noqa: F401

layers = _on_our_operations(layers)
optimize = _on_our_operations(optimize)
vars(optimize)["layers"] = layers
beam_search = _on_our_operations(beam_search)

del tf
