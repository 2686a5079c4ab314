"""From a loss to updated variables."""

from __future__ import annotations

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.hparam import HParams
from t2tp.mesh.lowering import Lowering
from t2tp.mesh.program import Mesh
from t2tp.optim.schedules import learning_rate


def apply_gradients(
    loss: mtf.Tensor, mesh: Mesh, hparams: HParams, train_steps: int
) -> dict[str, mtf.Tensor]:
    """Adds gradients, clipping and the optimizer's update of all trainable variables to the graph.

    Args:
      loss: a scalar.
      mesh: the program's mesh.
      hparams: `optimizer`, `learning_rate_schedule`, `clip_grad_norm` (0: no clipping) and what
        these read.
      train_steps: steps of the whole training.

    Returns:
      float32 scalars for people to look at: `learning_rate`, and `gradient_norm` before clipping.

    Raises:
      ValueError: a trainable variable has no influence on the loss.
    """
    variables = list(mesh.graph.trainable_variables)
    grads = mtf.gradients([loss], [v.value for v in variables])
    idle = [v.name for v, g in zip(variables, grads, strict=True) if g is None]
    if idle:
        raise ValueError(f"The loss does not depend on the variables {', '.join(idle)}.")
    norm = global_norm(grads)
    if hparams.clip_grad_norm:
        limit = hparams.clip_grad_norm
        factor = mtf.slicewise(
            lambda n: limit / tf.maximum(n, limit), [norm], splittable_dims=[], name="clip"
        )
        grads = [grad * mtf.cast(factor, grad.dtype) for grad in grads]
    rate = learning_rate(mesh.step, hparams, train_steps)
    registry.optimizer(hparams.optimizer)(rate, hparams).apply_grads(grads, variables)
    return {"learning_rate": rate, "gradient_norm": norm}


def global_norm(tensors: list[mtf.Tensor]) -> mtf.Tensor:
    """Square root of the sum of squares of all elements of all tensors: a float32 scalar."""
    return mtf.sqrt(SumOfSquaresOperation(tensors).outputs[0])


class SumOfSquaresOperation(mtf.Operation):
    """Inputs any tensors; output the sum of the squares of all their elements, a float32 scalar.

    It costs one reduction for each set of mesh axes that tensors are split over, where
    `mtf.reduce_sum` would cost one a tensor.
    """

    def __init__(self, tensors: list[mtf.Tensor]) -> None:
        super().__init__(tensors, name="sum_of_squares")
        self._outputs = [mtf.Tensor(self, mtf.Shape([]), tf.float32)]

    def lower(self, lowering: Lowering) -> None:
        mesh_impl = lowering.mesh_impl(self)
        by_axes: dict[tuple[int, ...], list[tf.Tensor]] = {}
        for tensor in self.inputs:
            axes = tuple(sorted(set(mesh_impl.tensor_layout(tensor.shape)) - {None}))
            square = tf.square(tf.cast(lowering.slice(tensor), tf.float32))
            by_axes.setdefault(axes, []).append(tf.reduce_sum(square))
        sums = [
            mesh_impl.collectives.allreduce(tf.add_n(squares), axes, "Add")
            for axes, squares in by_axes.items()
        ]
        lowering.set_slice(self.outputs[0], tf.add_n(sums))
