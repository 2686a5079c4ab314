"""Importing tensors into a step whose features have named dimensions already.

An Estimator's `model_fn` gets its features as TensorFlow tensors and imports them; a step of
`t2tp.Program` gets mtf tensors, each processor with its slice.
"""

from __future__ import annotations

import tensorflow as tf

from t2tp import upstream as mtf


def import_tf_tensor(
    mesh: mtf.Mesh,
    tf_tensor: tf.Tensor | mtf.Tensor,
    shape: mtf.Shape | None = None,
    name: str | None = None,
) -> mtf.Tensor:
    """A tensor of the graph from a TensorFlow tensor or an array that is the same everywhere.

    Args:
      mesh: that of the step.
      tf_tensor: the whole tensor. Also a feature of the step, as a `model_fn` for Estimator imports
        it: it gets the dimensions of `shape`.
      shape: of the result; not needed for a scalar or a feature.
      name: of the operation.

    Raises:
      ValueError: a feature has other sizes than `shape`.
    """
    if not isinstance(tf_tensor, mtf.Tensor):
        return mtf.import_tf_tensor(mesh, tf_tensor, shape, name)
    return _in_dimensions(tf_tensor, mtf.convert_to_shape(shape), name)


def import_fully_replicated(
    mesh: mtf.Mesh,
    tf_tensor: tf.Tensor | mtf.Tensor,
    shape: mtf.Shape,
    name: str | None = None,
) -> mtf.Tensor:
    """`import_tf_tensor`, by way of dimensions that no layout splits."""
    if not isinstance(tf_tensor, mtf.Tensor):
        return mtf.import_fully_replicated(mesh, tf_tensor, shape, name)
    return _in_dimensions(tf_tensor, mtf.convert_to_shape(shape), name)


def _in_dimensions(x: mtf.Tensor, shape: mtf.Shape | None, name: str | None) -> mtf.Tensor:
    if shape is None or shape == x.shape:
        return x
    if shape.to_integer_list != x.shape.to_integer_list:
        raise ValueError(
            f"import_tf_tensor: {x.name.removesuffix(':0')!r} is an mtf tensor {x.shape} already,"
            f" and {shape} has other sizes. Declare its t2tp.Feature in these dimensions, or use"
            " mtf.reshape."
        )
    return mtf.reshape(x, shape, name or "import")


def _refuse_conversion(
    value: mtf.Tensor, dtype: tf.DType | None = None, name: str | None = None, as_ref: bool = False
) -> tf.Tensor:
    """What TensorFlow's functions call where they are given an mtf tensor."""
    del dtype, name, as_ref
    raise TypeError(
        f"{value.name.removesuffix(':0')!r} is an mtf tensor {value.shape}, and this is a function"
        " of TensorFlow's: call it on slices, mtf.slicewise(tf_fn, [x],"
        " splittable_dims=[...]), use the operation of the same name in mtf, or apply it to the"
        " features before the program is fed."
    )


tf.register_tensor_conversion_function(mtf.Tensor, _refuse_conversion)
