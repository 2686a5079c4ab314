"""The installed mesh-tensorflow, imported on the current TensorFlow.

The engine and t2tp's operations use this module; models use `t2tp.mtf`. mesh-tensorflow 0.1.21, the
last release, is for TensorFlow 2.11. It imports names that TensorFlow has moved or removed since:

* `tensorflow.compat.v1.estimator` (removed in 2.16) and two modules of TPUEstimator. The two
  Estimator classes that mesh-tensorflow uses as base classes also exist in `tf.compat.v1.train`.
  Models use Estimator's `ModeKeys`.
* `register_tensor_conversion_function` (moved) and `register_dense_tensor_like_type` (removed) in
  `tensorflow.python.framework.ops`.

Stand-ins for these names exist only while mesh-tensorflow is imported.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as _tf
import tensorflow.compat.v1 as tf1
from tensorflow.python import tpu as _tpu
from tensorflow.python.framework import ops as _framework_ops
from tensorflow.python.framework import tensor_conversion_registry as _conversion_registry


class _LostModule(types.ModuleType):
    """A stand-in for a module that TensorFlow has removed."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"TensorFlow no longer has {self.__name__} with its {name}. In t2tp, a"
            " model_fn becomes the step of a t2tp.Program: see docs/porting.md."
        )


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Provides the names that mesh-tensorflow needs and TensorFlow lacks, inside the context."""
    estimator = _LostModule("tensorflow.compat.v1.estimator")
    vars(estimator)["ModeKeys"] = types.SimpleNamespace(TRAIN="train", EVAL="eval", PREDICT="infer")
    for base_class in ("CheckpointSaverListener", "SessionRunHook"):
        setattr(estimator, base_class, getattr(tf1.train, base_class))
    tpu_modules = [
        _LostModule(f"{_tpu.__name__}.{name}") for name in ("tpu_config", "tpu_estimator")
    ]
    lent = [
        (tf1, "estimator", estimator),
        (_tf, "estimator", estimator),  # gin.tf asks for it there
        (
            _framework_ops,
            "register_tensor_conversion_function",
            _conversion_registry.register_tensor_conversion_function,
        ),
        (_framework_ops, "register_dense_tensor_like_type", lambda _: None),
        *((_tpu, module.__name__.rpartition(".")[2], module) for module in tpu_modules),
    ]
    lent = [(owner, name, value) for owner, name, value in lent if not hasattr(owner, name)]
    for owner, name, value in lent:
        setattr(owner, name, value)
    for module in (estimator, *tpu_modules):
        sys.modules.setdefault(module.__name__, module)
    try:
        yield
    finally:
        for owner, name, _ in lent:
            delattr(owner, name)
        for module in (estimator, *tpu_modules):
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # mesh-tensorflow has no type hints


with stand_ins():
    from mesh_tensorflow import *  # noqa: F403
    from mesh_tensorflow import beam_search, layers, ops, optimize, placement_mesh_impl, utils  # noqa: F401

# Hides messages that are logged for each variable without an initializer, and for each call of
# `layers.dense`.
_HIDDEN = ("Using default tf glorot_uniform_initializer", "Deprecation warning - it is recommended")
_tf.get_logger().addFilter(lambda record: not record.getMessage().startswith(_HIDDEN))

_to_dimension = ops.convert_to_dimension


def _convert_to_dimension(d: Any) -> Any:
    try:
        return _to_dimension(d)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{d!r} is not a dimension: write mtf.Dimension(name, size), or the whole shape as text"
            " such as 'batch:16;length:128'"
        ) from error


ops.convert_to_dimension = _convert_to_dimension


def _arithmetic(method: Any) -> Any:
    def operate(self: Any, other: Any) -> Any:
        is_array = isinstance(other, (list, tuple)) or len(getattr(other, "shape", ()))
        if is_array and not isinstance(other, ops.Tensor):
            raise TypeError(
                f"{self}: the other operand is a {type(other).__name__}, whose dimensions have no"
                " names: make it a feature of the program, or import it by mtf.import_tf_tensor"
            )
        return method(self, other)

    return operate


def _comparison(function: str) -> Any:
    def compare(self: Any, other: Any) -> Any:
        raise TypeError(
            f"{self} has no value while the graph is built: compare by mtf.{function}, and choose"
            " by mtf.where"
        )

    return compare


for _name in ("add", "sub", "mul", "truediv"):
    for _method in (f"__{_name}__", f"__r{_name}__"):
        setattr(ops.Tensor, _method, _arithmetic(getattr(ops.Tensor, _method)))
for _name, _function in {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}.items():
    setattr(ops.Tensor, f"__{_name}__", _comparison(_function))
# NumPy would compute `array + tensor` element by element.
ops.Tensor.__array_ufunc__ = None

globals().pop("tf")  # mesh-tensorflow exports `tf` too
