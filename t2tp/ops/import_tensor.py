"""Imports TensorFlow tensors into a step; features that are mtf tensors already are accepted too.

An Estimator's `model_fn` receives features as TensorFlow tensors and imports them. A step of
`t2tp.Program` receives features as mtf tensors. The imports accept both, so that a `model_fn` can
be used as a step.
"""

import tensorflow as tf

from t2tp import upstream


def import_tf_tensor(
    mesh: upstream.Mesh,
    tf_tensor: tf.Tensor | upstream.Tensor,
    shape: upstream.Shape | None = None,
    name: str | None = None,
) -> upstream.Tensor:
    """Imports a TensorFlow tensor or an array that is the same on all processors.

    Args:
      mesh: the step's mesh.
      tf_tensor: the full tensor. A feature of the step is accepted too, for a `model_fn` written
        for Estimator; its dimensions are renamed to `shape`.
      shape: shape of the result; not needed for a scalar or a feature.
      name: operation name.

    Raises:
      ValueError: the sizes of a feature differ from `shape`.
    """
    if not isinstance(tf_tensor, upstream.Tensor):
        return upstream.import_tf_tensor(mesh, tf_tensor, shape, name)
    x, shape = tf_tensor, upstream.convert_to_shape(shape)
    if shape is None or shape == x.shape:
        return x
    if shape.to_integer_list != x.shape.to_integer_list:
        raise ValueError(
            f"import_tf_tensor: {x.name.removesuffix(':0')!r} is an mtf tensor {x.shape} already,"
            f" and {shape} has other sizes. Declare its t2tp.Feature in these dimensions, or use"
            " mtf.reshape."
        )
    return upstream.reshape(x, shape, name or "import")


# mesh-tensorflow's function of this name differs only in how it cuts the tensor into slices.
import_fully_replicated = import_tf_tensor


def _raise_not_convertible(value: upstream.Tensor, **_: object) -> tf.Tensor:
    """Raises an error. TensorFlow's functions call this when they receive an mtf tensor."""
    raise TypeError(
        f"{value.name.removesuffix(':0')!r} is an mtf tensor {value.shape}, and this is a function"
        " of TensorFlow's: call it on slices, mtf.slicewise(tf_fn, [x],"
        " splittable_dims=[...]), use the operation of the same name in mtf, or apply it to the"
        " features before the program is fed."
    )


tf.register_tensor_conversion_function(upstream.Tensor, _raise_not_convertible)
