"""From a loss to updated variables."""

from __future__ import annotations

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.hparam import HParams
from t2tp.mesh.effects import only_if
from t2tp.mesh.lowering import Lowering
from t2tp.mesh.program import Mesh
from t2tp.optim.loss_scale import LossScale
from t2tp.optim.schedules import learning_rate


def apply_gradients(
    loss: mtf.Tensor, mesh: Mesh, hparams: HParams, train_steps: int
) -> dict[str, mtf.Tensor]:
    """Adds gradients, clipping and the optimizer's update of all trainable variables to the graph.

    Args:
      loss: a scalar.
      mesh: the program's mesh.
      hparams: `optimizer`, `learning_rate_schedule`, `clip_grad_norm` (0: no clipping) and what
        these read; `activation_dtype`: with float16 the loss is scaled (see `LossScale`), and a
        step whose gradients overflow updates nothing.
      train_steps: steps of the whole training.

    Returns:
      float32 scalars for people to look at: `learning_rate`, `gradient_norm` before clipping and,
      if there is one, `loss_scale`.

    Raises:
      ValueError: a trainable variable has no influence on the loss.
    """
    variables = list(mesh.graph.trainable_variables)
    loss_scale = LossScale(mesh) if hparams.activation_dtype == "float16" else None
    scaled = loss if loss_scale is None else loss * loss_scale.value
    grads = mtf.gradients([scaled], [v.value for v in variables])
    idle = [v.name for v, g in zip(variables, grads, strict=True) if g is None]
    if idle:
        raise ValueError(f"The loss does not depend on the variables {', '.join(idle)}.")
    # Summed over the mesh, clipped and applied in float32, whatever they were computed in.
    grads = [mtf.cast(grad, tf.float32) for grad in grads]
    if loss_scale is not None:
        grads = [grad / loss_scale.value for grad in grads]
    norm = global_norm(grads)
    if hparams.clip_grad_norm:
        limit = hparams.clip_grad_norm
        factor = mtf.slicewise(
            lambda n: limit / tf.maximum(n, limit), [norm], splittable_dims=[], name="clip"
        )
        grads = [grad * factor for grad in grads]
    rate = learning_rate(mesh.step, hparams, train_steps)
    optimizer = registry.optimizer(hparams.optimizer)(rate, hparams)
    scalars = {"learning_rate": rate, "gradient_norm": norm}
    if loss_scale is None:
        optimizer.apply_grads(grads, variables)
    else:
        is_finite = mtf.slicewise(
            tf.math.is_finite, [norm], output_dtype=tf.bool, splittable_dims=[], name="is_finite"
        )
        only_if(is_finite, optimizer.apply_grads(grads, variables))
        loss_scale.update(is_finite)
        scalars["loss_scale"] = loss_scale.value
    return scalars


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
            half = tf.nn.l2_loss(tf.cast(lowering.slice(tensor), tf.float32))
            by_axes.setdefault(axes, []).append(half)
        sums = [
            mesh_impl.collectives.allreduce(2.0 * tf.add_n(halves), axes, "Add")
            for axes, halves in by_axes.items()
        ]
        lowering.set_slice(self.outputs[0], tf.add_n(sums))
