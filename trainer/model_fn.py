"""Model functions: from features in named dimensions to a loss, metrics or predictions."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.mesh.program import Mesh
from t2tp.models.model import Model
from t2tp.optim import apply_gradients


class ModeKeys(enum.Enum):
    """What a model function is called for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"


@dataclass(frozen=True)
class EstimatorSpec:
    """What a model function has built into the graph.

    Attributes:
      mode: what for.
      loss: scalar that training minimizes; needed to train. The function has then also built the
        update of the variables.
      metrics: float32 scalars, each a sum over the batch; needed to evaluate. `tokens`, if there,
        is what tokens/s counts.
      predictions: tensors by name; needed to predict.
      scalars: float32 scalars to show for a training step.
    """

    mode: ModeKeys
    loss: mtf.Tensor | None = None
    metrics: Mapping[str, mtf.Tensor] = field(default_factory=dict)
    predictions: Mapping[str, mtf.Tensor] = field(default_factory=dict)
    scalars: Mapping[str, mtf.Tensor] = field(default_factory=dict)

    def outputs(self) -> dict[str, mtf.Tensor]:
        """What a step returns in this mode."""
        if self.mode == ModeKeys.PREDICT:
            return dict(self.predictions)
        metrics = {f"metrics/{name}": tensor for name, tensor in self.metrics.items()}
        if self.mode == ModeKeys.EVAL:
            return metrics
        if self.loss is None:
            raise ValueError("The model function returned no loss to train with.")
        scalars = {f"scalars/{name}": tensor for name, tensor in self.scalars.items()}
        return {"loss": self.loss} | metrics | scalars


# (mesh, features, mode, hparams) -> EstimatorSpec
ModelFn = Callable[[Mesh, Mapping[str, mtf.Tensor], ModeKeys, Any], EstimatorSpec]


def model_fn_of(
    model_class: type[Model], vocab_sizes: Mapping[str, int], train_steps: int
) -> ModelFn:
    """The model function of a registered model.

    Args:
      model_class: the model.
      vocab_sizes: of the problem.
      train_steps: steps of the whole training; learning-rate schedules may end there.
    """

    def model_fn(
        mesh: Mesh, features: Mapping[str, mtf.Tensor], mode: ModeKeys, hparams: HParams
    ) -> EstimatorSpec:
        model = model_class(hparams, vocab_sizes)
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(
                mode, predictions={"logits": model.next_token_logits(mesh, features)}
            )
        model.check_features(features)
        output = model.loss(mesh, features, training=mode == ModeKeys.TRAIN)
        scalars = {}
        if mode == ModeKeys.TRAIN:
            scalars = apply_gradients(output.loss, mesh, hparams, train_steps)
        return EstimatorSpec(mode, output.loss, output.metrics, scalars=scalars)

    return model_fn
