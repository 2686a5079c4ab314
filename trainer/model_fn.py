"""Model functions: map features in named dimensions to a loss, metrics or predictions."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.decoding import DecodeOptions, decode
from t2tp.decoding.scoring import score
from t2tp.hparam import HParams
from t2tp.models.autoregressive import AutoregressiveModel
from t2tp.models.model import Classifier, LossOutput, Model
from t2tp.models.preferences import by_row, reply_log_probs
from t2tp.models.transformer_lm import TransformerLm
from t2tp.optim import read_averages, sum_metrics, train_step
from t2tp.optim.gradient_accumulation import LossFn
from t2tp.trainer.run_config import RunConfig


class ModeKeys(enum.Enum):
    """The modes in which a model function is called."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"
    SCORE = "score"  # The log-probability of each row's targets.
    REFERENCE = "reference"  # The log-probabilities of pairs of replies; see `by_row`.
    LOSS = "loss"  # The loss as in TRAIN, without the update; used to inspect a step.


@dataclass(frozen=True)
class EstimatorSpec:
    """The graph that a model function has built.

    Attributes:
      mode: the mode of the call.
      loss: scalar that training minimizes; required to train. In the mode TRAIN, the graph also has
        the update of the variables.
      metrics: float32 scalars, each a sum over the batch; required to evaluate. Tokens/s is
        computed from `tokens`, if present.
      predictions: tensors by name; required to predict.
      scalars: other float32 scalars to report for a training step.
    """

    mode: ModeKeys
    loss: mtf.Tensor | None = None
    metrics: Mapping[str, mtf.Tensor] = field(default_factory=dict)
    predictions: Mapping[str, mtf.Tensor] = field(default_factory=dict)
    scalars: Mapping[str, mtf.Tensor] = field(default_factory=dict)

    def outputs(self) -> dict[str, mtf.Tensor]:
        """Returns the outputs of a step in this mode."""
        if self.mode in (ModeKeys.PREDICT, ModeKeys.SCORE, ModeKeys.REFERENCE):
            return dict(self.predictions)
        metrics = {f"metrics/{name}": tensor for name, tensor in self.metrics.items()}
        if self.mode == ModeKeys.EVAL:
            return metrics
        if self.loss is None:
            raise ValueError("The model function returned no loss to train with.")
        scalars = {f"scalars/{name}": tensor for name, tensor in self.scalars.items()}
        return {"loss": self.loss} | metrics | scalars


# (mesh, features, mode, hparams) -> EstimatorSpec; `Estimator` describes optional parameters.
ModelFn = Callable[..., EstimatorSpec]


def model_fn_of(
    model_class: type[Model],
    vocab_sizes: Mapping[str, int],
    train_steps: int,
    teacher: tuple[type[Model], HParams] | None = None,
) -> ModelFn:
    """Returns the model function of a registered model.

    The function's parameter `decode_options` sets how an autoregressive model decodes. The schedule
    of the learning rate may end at the whole run's last step, `train_steps`. `teacher` has the
    class and the hparams of the model that training imitates.
    """

    def model_fn(
        mesh: Mesh,
        features: Mapping[str, mtf.Tensor],
        mode: ModeKeys,
        hparams: HParams,
        decode_options: DecodeOptions | None,
    ) -> EstimatorSpec:
        model = model_class(hparams, vocab_sizes)
        if teacher is not None:
            set_teacher(model, *teacher)
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(
                mode, predictions=_predictions(model, mesh, features, decode_options)
            )
        if mode == ModeKeys.SCORE:
            assert isinstance(model, AutoregressiveModel)  # `check_writes` has checked this.
            return EstimatorSpec(mode, predictions=score(model, mesh, features))

        def summed(loss_fn: LossFn) -> Mapping[str, mtf.Tensor]:
            if mesh.layout.num_stages > 1:
                return sum_metrics(loss_fn, features, hparams.microbatches, mesh)
            return loss_fn(features).sums

        if mode == ModeKeys.REFERENCE:
            rows = mtf.Dimension("rows", features["targets"].shape.dims[0].size)

            def log_probs(part: Mapping[str, mtf.Tensor]) -> LossOutput:
                assert isinstance(model, TransformerLm)  # The others have no preference_loss.
                logits = model.logits(mesh, part)
                return LossOutput({}, by_row(reply_log_probs(logits, part), part, rows))

            return EstimatorSpec(mode, predictions=summed(log_probs))
        model.check_features(features)
        if mode == ModeKeys.LOSS:
            return EstimatorSpec(mode, model.loss(mesh, features, training=True).loss)
        if mode == ModeKeys.EVAL:
            sums = summed(lambda part: model.loss(mesh, part, training=False))
            return EstimatorSpec(mode, metrics=sums)
        step = train_step(
            lambda part: model.loss(mesh, part, training=True), features, mesh, hparams, train_steps
        )
        return EstimatorSpec(mode, step.loss, step.sums, scalars=step.scalars)

    def with_averages(
        mesh: Mesh,
        features: Mapping[str, mtf.Tensor],
        mode: ModeKeys,
        hparams: HParams,
        decode_options: DecodeOptions | None = None,
        config: RunConfig | None = None,
    ) -> EstimatorSpec:
        spec = model_fn(mesh, features, mode, hparams, decode_options)
        uses_averages = hparams.ema_decay and (config is None or config.weights == "averages")
        if uses_averages and mode in (ModeKeys.EVAL, ModeKeys.PREDICT, ModeKeys.SCORE):
            read_averages(mesh)
        return spec

    return with_averages


def set_teacher(model: Model, teacher_class: type[Model], hparams: HParams) -> None:
    """Gives a model a teacher, whose tables have the rows of the model's own vocabulary.

    Raises:
      ValueError: one of the models is no decoder-only language model.
    """
    if not (isinstance(model, TransformerLm) and issubclass(teacher_class, TransformerLm)):
        raise ValueError(
            f"a {type(model).__name__} has no teacher: distil a decoder-only language model, such"
            " as transformer_lm"
        )
    if model.hparams.preference_loss:
        raise ValueError("preference_loss has no teacher: set preference_loss= or no --teacher")
    hparams = hparams.copy()
    hparams.set("vocab_size", model.vocab.size)
    hparams.set("activation_dtype", model.hparams.activation_dtype)
    model.teacher = teacher_class(hparams, model.vocab_sizes)


def _predictions(
    model: Model,
    mesh: Mesh,
    features: Mapping[str, mtf.Tensor],
    decode_options: DecodeOptions | None,
) -> Mapping[str, mtf.Tensor]:
    """Decodes (see `t2tp.decoding.decode`) or classifies.

    A classifier predicts `classes`, int32 [batch], and `probabilities`, float32 [batch, classes].
    """
    if isinstance(model, AutoregressiveModel):
        return decode(model, mesh, features, decode_options or DecodeOptions())
    if isinstance(model, Classifier):
        logits = mtf.cast(model.class_logits(mesh, features), tf.float32)
        classes = logits.shape.dims[-1]
        return {
            "classes": mtf.argmax(logits, classes),
            "probabilities": mtf.softmax(logits, classes),
        }
    raise NotImplementedError(f"{type(model).__name__} generates neither tokens nor classes")
