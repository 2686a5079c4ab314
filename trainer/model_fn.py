"""Model functions: from features in named dimensions to a loss, metrics or predictions."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from t2tp import mtf
from t2tp.decoding import DecodeOptions, decode
from t2tp.hparam import HParams
from t2tp.mesh.program import Mesh
from t2tp.models.autoregressive import AutoregressiveModel
from t2tp.models.classifier import Classifier
from t2tp.models.model import LossOutput, Model
from t2tp.optim import read_averages, train_step


class ModeKeys(enum.Enum):
    """What a model function is called for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"
    LOSS = "loss"  # As TRAIN, but nothing is updated: to look at what a step computes.


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
    model_class: type[Model],
    vocab_sizes: Mapping[str, int],
    train_steps: int,
    decode_options: DecodeOptions | None = None,
) -> ModelFn:
    """The model function of a registered model.

    Args:
      model_class: the model.
      vocab_sizes: of the problem.
      train_steps: steps of the whole training; learning-rate schedules may end there.
      decode_options: how a model that writes decodes when it predicts.
    """

    def model_fn(
        mesh: Mesh, features: Mapping[str, mtf.Tensor], mode: ModeKeys, hparams: HParams
    ) -> EstimatorSpec:
        model = model_class(hparams, vocab_sizes)
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(
                mode, predictions=_predictions(model, mesh, features, decode_options)
            )
        model.check_features(features)
        if mode == ModeKeys.LOSS:
            return EstimatorSpec(mode, model.loss(mesh, features, training=True).loss)
        if mode == ModeKeys.EVAL:
            output = model.loss(mesh, features, training=False)
            return EstimatorSpec(mode, output.loss, output.metrics)

        def loss_fn(part: Mapping[str, mtf.Tensor]) -> LossOutput:
            return model.loss(mesh, part, training=True)

        step = train_step(loss_fn, features, mesh, hparams, train_steps)
        return EstimatorSpec(mode, step.loss, step.metrics, scalars=step.scalars)

    def with_averages(
        mesh: Mesh, features: Mapping[str, mtf.Tensor], mode: ModeKeys, hparams: HParams
    ) -> EstimatorSpec:
        spec = model_fn(mesh, features, mode, hparams)
        if hparams.ema_decay and mode in (ModeKeys.EVAL, ModeKeys.PREDICT):
            read_averages(mesh)
        return spec

    return with_averages


def _predictions(
    model: Model,
    mesh: Mesh,
    features: Mapping[str, mtf.Tensor],
    decode_options: DecodeOptions | None,
) -> Mapping[str, mtf.Tensor]:
    """What a model writes (see `t2tp.decoding.decode`), or `classes`, int32 [batch], and
    `probabilities`, float32 [batch, classes]."""
    if isinstance(model, AutoregressiveModel):
        return decode(model, mesh, features, decode_options or DecodeOptions())
    if isinstance(model, Classifier):
        logits = mtf.cast(model.class_logits(mesh, features), tf.float32)
        classes = logits.shape.dims[-1]
        return {
            "classes": mtf.argmax(logits, classes),
            "probabilities": mtf.softmax(logits, classes),
        }
    raise NotImplementedError(f"{type(model).__name__} neither writes nor names classes")
