"""From a loss to updated variables."""

from __future__ import annotations

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.hparam import HParams
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
    squares = [mtf.reduce_sum(mtf.square(mtf.cast(t, tf.float32))) for t in tensors]
    return mtf.sqrt(mtf.add_n(squares))
