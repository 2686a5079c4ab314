"""mesh-tensorflow as it was installed, imported on today's TensorFlow.

The engine and our operations are written in it; model authors say `from t2tp import mtf`, which is
the same language with our operations in it. mesh-tensorflow 0.1.21 was last released for
TensorFlow 2.11 and looks, while it is imported, for names that have moved or gone since:

* `tensorflow.compat.v1.estimator` (gone in 2.16). Only two of its classes are named, as base
  classes, and both live on in `tf.compat.v1.train`.
* `register_tensor_conversion_function` and `register_dense_tensor_like_type` in
  `tensorflow.python.framework.ops` (moved, respectively dropped).

The stand-ins are in place only while the package is imported, and are taken away again.
"""

from __future__ import annotations

import contextlib
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

del tf
