"""A custom operation: centering. It sums over a dimension that may be split.

    python examples/custom_operation.py

`center(x, dim)` is `x - mean(x, dim)`. Centering is linear, and its matrix is symmetric, so its
gradient centers the incoming gradient. As one operation, it therefore stores nothing for the
backward pass.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.lowering.signature import Signature

batch = mtf.Dimension("batch", 32)
d_in = mtf.Dimension("d_in", 8)
d_out = mtf.Dimension("d_out", 16)


def center(x: mtf.Tensor, dim: mtf.Dimension) -> mtf.Tensor:
    """Subtracts the mean along a dimension.

    Args:
      x: [..., dim, ...], floats.
      dim: a dimension of `x`.

    Raises:
      ValueError: `x` has no `dim`.
    """
    if dim not in x.shape.dims:
        raise ValueError(f"center: {x.name!r} {x.shape} has no dimension {dim}.")
    return CenterOperation(x, dim).outputs[0]


class CenterOperation(t2tp.Operation):
    """Input: x. Output: the centered x, of the same shape and dtype."""

    def __init__(self, x: mtf.Tensor, dim: mtf.Dimension) -> None:
        super().__init__([x], name="center")
        self._dim = dim
        self.signature = Signature(combined=[dim])
        self.set_outputs(x)

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor]:
        """Builds the gradient w.r.t. x."""
        return CenterOperation(grad_ys[0], self._dim).outputs

    def lower(self, lowering) -> None:
        """Computes the slice of one processor; a split sum is all-reduced."""
        mesh_impl = lowering.mesh_impl(self)
        x = lowering.slice(self.inputs[0])
        total = tf.reduce_sum(x, self.inputs[0].shape.dims.index(self._dim), keepdims=True)
        axis = mesh_impl.tensor_dimension_to_mesh_axis(self._dim)
        if axis is not None:  # This slice has only a part of the dimension.
            total = mesh_impl.collectives.allreduce(total, [axis], "Add")
        lowering.set_slice(self.outputs[0], x - total / self._dim.size)


def step_fn(mesh, features):
    """Fits a matrix w, so that center(x w) is y."""
    w = mtf.get_variable(mesh, "w", mtf.Shape([d_in, d_out]))
    y = center(mtf.einsum([features["x"], w], reduced_dims=[d_in]), d_out)
    loss = mtf.reduce_mean(mtf.square(y - features["y"]))
    (gradient,) = mtf.gradients([loss], [w])
    mtf.assign_sub(w, 5.0 * gradient)
    return {"loss": loss}


def main() -> None:
    """Trains for 20 steps on a mesh that splits the centered dimension."""
    program = t2tp.Program(
        step_fn,
        {"x": t2tp.Feature(mtf.Shape([batch, d_in])), "y": t2tp.Feature(mtf.Shape([batch, d_out]))},
        mesh_shape="data:2;model:2",
        layout="batch:data;d_out:model",
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch.size, d_in.size)).astype("float32")
    y = x @ rng.normal(size=(d_in.size, d_out.size)).astype("float32")
    y -= y.mean(axis=1, keepdims=True)
    for step in range(20):
        outputs = program({"x": x, "y": y}, step=step)
        print(f"step {step:2}  loss {outputs['loss']:.4f}")


if __name__ == "__main__":
    main()
