"""The training step: from a loss to updated variables."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.building.mesh import Mesh, count_of_stages, is_balance
from t2tp.hparam import HParams
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import ALL, Signature
from t2tp.ops.variables.zero_weights import gradients_at_rest
from t2tp.optim.clipping import clip, global_norm
from t2tp.optim.ema import average_weights
from t2tp.optim.gradient_accumulation import LossFn, accumulate, variable_gradients
from t2tp.optim.optimizer import variable_slice
from t2tp.optim.schedules import learning_rate
from t2tp.optim.step_skipping import LossScale, conditions_of_step, count_skipped_steps, finite


@dataclass(frozen=True)
class TrainStep:
    """The reported values of a training step.

    Attributes:
      sums: `LossOutput.sums` of the batch.
      scalars: see `apply_gradients`; in a pipeline also the idle shares, `pipeline_idle_share` and
        `pipeline_idle_share_stage_<number>`.
    """

    loss: mtf.Tensor
    sums: Mapping[str, mtf.Tensor]
    scalars: dict[str, mtf.Tensor]


def train_step(
    loss_fn: LossFn,
    features: Mapping[str, mtf.Tensor],
    mesh: Mesh,
    hparams: HParams,
    train_steps: int,
) -> TrainStep:
    """Adds a training step to the graph: the loss, its gradients and their application.

    Args:
      loss_fn: builds the loss of features.
      features: the features of the batch, by name.
      mesh: the program's mesh.
      hparams: `microbatches`, the number of microbatches (`accumulate` says when this number
        changes the result); and the hparams of `apply_gradients`.
      train_steps: steps of the training.

    Raises:
      ValueError: see `accumulate` and `apply_gradients`.
    """
    if hparams.microbatches == 1 and mesh.layout.num_stages == 1:
        output = loss_fn(features)
        scalars = apply_gradients(output.loss, mesh, hparams, train_steps)
        return TrainStep(output.loss, output.sums, scalars)
    loss_scale = _loss_scale(mesh, hparams)
    scale = None if loss_scale is None else loss_scale.value
    batch = accumulate(loss_fn, features, hparams.microbatches, mesh, scale)
    scalars = _apply(batch.gradients, batch.loss, loss_scale, mesh, hparams, train_steps)
    if batch.idle_share is not None:
        scalars |= _idle_shares(batch.idle_share)
    return TrainStep(batch.loss, batch.sums, scalars)


def _idle_shares(of_stages: mtf.Tensor) -> dict[str, mtf.Tensor]:
    """Returns each stage's measured idle share and their mean, by name."""
    (stages,) = of_stages.shape.dims
    shares = {"pipeline_idle_share": mtf.reduce_mean(of_stages)}
    for number in range(stages.size):
        one = mtf.slice(of_stages, number, 1, stages.name)
        shares[f"pipeline_idle_share_stage_{number}"] = mtf.reshape(one, [])
    return shares


def apply_gradients(
    loss: mtf.Tensor, mesh: Mesh, hparams: HParams, train_steps: int
) -> dict[str, mtf.Tensor]:
    """Adds gradients, clipping and the optimizer's updates of all trainable variables to the graph.

    Args:
      loss: a scalar.
      mesh: the program's mesh.
      hparams: `optimizer` and `learning_rate_schedule` and their hparams; `clip_grad_norm`
        (0: no clipping); `ema_decay` (0: no averages of the weights);
        `on_nonfinite`, `skip_step_sigma` and `skip_step_window` (see `conditions_of_step`);
        `show_movement`; `activation_dtype`: with float16 the loss is scaled (see `LossScale`), and
        a step whose gradients overflow is skipped.
      train_steps: steps of the training.

    Returns:
      float32 scalars for reports: `learning_rate`, `gradient_norm` before clipping, `is_finite` (1
      if loss and gradients are finite) and, if enabled, `loss_scale`, `skipped_steps`,
      `parameter_norm` (before the step) and `update_norm`.

    Raises:
      ValueError: a trainable variable has no influence on the loss, or hparams contradict each
        other.
    """
    loss_scale = _loss_scale(mesh, hparams)
    scale = None if loss_scale is None else loss_scale.value
    grads = variable_gradients(loss, mesh, scale)
    return _apply(grads, loss, loss_scale, mesh, hparams, train_steps)


def _apply(
    grads: Sequence[mtf.Tensor],
    loss: mtf.Tensor,
    loss_scale: LossScale | None,
    mesh: Mesh,
    hparams: HParams,
    train_steps: int,
) -> dict[str, mtf.Tensor]:
    """Divides gradients by the loss scale, clips them, and updates the variables."""
    variables = list(mesh.graph.trainable_variables)
    grads = gradients_at_rest(grads, variables)
    balances = [(v, g) for v, g in zip(variables, grads, strict=True) if is_balance(v)]
    grads = [g for v, g in zip(variables, grads, strict=True) if not is_balance(v)]
    variables = [v for v in variables if not is_balance(v)]
    of_stage = [count_of_stages(variable) for variable in variables]
    divisor = None if loss_scale is None else loss_scale.value
    grads, norm = clip(grads, divisor, hparams, of_stage)
    rate = learning_rate(mesh.step, hparams, train_steps)
    is_finite = finite([mtf.cast(loss, tf.float32), norm])
    scalars = {
        "learning_rate": rate,
        "gradient_norm": norm,
        "is_finite": mtf.cast(is_finite, tf.float32),
    }
    conditions = conditions_of_step(loss, norm, is_finite, hparams)
    if loss_scale is not None:
        fits = finite([norm])
        conditions.append(fits)
        loss_scale.update(fits)
        scalars["loss_scale"] = loss_scale.value
    is_good = functools.reduce(mtf.logical_and, conditions) if conditions else None
    if hparams.show_movement:
        # Must precede the updates, to read the variables before the step.
        before = SnapshotOperation(variables).outputs
        scalars["parameter_norm"] = global_norm(before, of_stage)
    optimizer = registry.optimizer(hparams.optimizer)(rate, hparams)
    if is_good is not None:
        scalars["skipped_steps"], optimizer.update_number = count_skipped_steps(mesh, is_good)
    updates = list(optimizer.apply_grads(grads, variables))
    updates += [_rebalanced(v, g, hparams.moe_balance_rate) for v, g in balances]
    if hparams.ema_decay:
        updates += average_weights(variables, hparams.ema_decay)
    if is_good is not None:
        for op in updates:
            op.predicate = is_good
    if hparams.show_movement:
        after = SnapshotOperation(variables).outputs
        pairs = zip(after, before, strict=True)
        changes = [mtf.cwise(_change, list(x), tf.float32, name="change") for x in pairs]
        scalars["update_norm"] = global_norm(changes, of_stage)
    return scalars


def _rebalanced(variable: mtf.Variable, load: mtf.Tensor, rate: float) -> mtf.Operation:
    """Moves an expert's balance by `rate` against the sign of its excess load (arXiv:2408.15664).

    `load` is each expert's number of tokens. It is compared with the mean in integers: rounding
    errors of a mean, which depend on the layout, would decide the sign of an excess of 0.
    """
    load = mtf.cast(load, tf.int64)
    excess = load * variable.shape.size - mtf.reduce_sum(load)
    return mtf.assign_sub(variable, rate * mtf.cast(mtf.sign(excess), tf.float32))


def _loss_scale(mesh: Mesh, hparams: HParams) -> LossScale | None:
    return LossScale(mesh) if hparams.activation_dtype == "float16" else None


def _change(now: tf.Tensor, then: tf.Tensor) -> tf.Tensor:
    return tf.cast(now, tf.float32) - tf.cast(then, tf.float32)


class SnapshotOperation(Operation):
    """Outputs the values of variables at this point of the step, in their slice dtype."""

    signature = Signature(ordered=ALL, pads=True)

    def __init__(self, variables: list[mtf.Variable]) -> None:
        super().__init__([var.value for var in variables], name="snapshot")
        self._variables = variables
        self.set_outputs(*((var.shape, var.slice_dtype) for var in variables))

    def lower(self, lowering: Lowering) -> None:
        for var, output in zip(self._variables, self.outputs, strict=True):
            lowering.set_slice(output, variable_slice(lowering, var).read_value())
