"""Model functions of registered models, with different hparams of training."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import mtf, registry
from t2tp.models.model import Model
from t2tp.optim.loss import LossOutput, LossTerm
from t2tp.trainer.model_fn import ModeKeys, model_fn_of
from tests.optim.regression import make_hparams


class Slope(Model):
    """The mean of `w * x`, whose gradient is the mean of x."""

    takes = ("x",)

    def build_loss(self, mesh, features, training):
        w = mtf.get_variable(mesh, "w", mtf.Shape([]), initializer=tf.ones_initializer())
        rows = mtf.reduce_sum(mtf.ones_like(features["x"]))
        total = mtf.reduce_sum(w * features["x"])
        return LossOutput({"mean": LossTerm(total, rows)}, {"total": total, "rows": rows})


def programs(**values):
    """Returns a program that trains, and one that evaluates the same variables."""
    hparams = make_hparams(optimizer="sgd", learning_rate_constant=1.0, **values)
    model_fn = model_fn_of(Slope, {"targets": 2}, train_steps=10)
    made = {}
    for mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
        made[mode] = t2tp.Program(
            lambda mesh, features, mode=mode: model_fn(mesh, features, mode, hparams).outputs(),
            {"x": t2tp.Feature("batch:8")},
            layout=t2tp.Layout("data:2", "batch:data"),
            cluster=made[ModeKeys.TRAIN].cluster if made else None,
            variables=made[ModeKeys.TRAIN].variables if made else None,
        )
    return made[ModeKeys.TRAIN], made[ModeKeys.EVAL]


@pytest.mark.parametrize("microbatches", [1, 4])
def test_microbatches_show_what_the_batch_would(microbatches):
    train, _ = programs(microbatches=microbatches)
    x = np.arange(8, dtype=np.float32)
    outputs = train({"x": x})
    assert outputs["loss"] == pytest.approx(3.5)
    assert outputs["metrics/total"] == pytest.approx(28.0)
    assert outputs["metrics/rows"] == 8
    assert outputs["scalars/gradient_norm"] == pytest.approx(3.5)
    assert train.variables["w"].numpy() == pytest.approx(1 - 3.5)


@pytest.mark.parametrize(("decay", "wanted"), [(0.0, -1.0), (0.5, -0.5)])
def test_an_evaluation_reads_the_averages_where_there_are_some(decay, wanted):
    train, evaluate = programs(ema_decay=decay)
    ones = {"x": np.ones(8, np.float32)}
    for step in range(2):  # w falls from 1 to 0, and to -1.
        train(ones, step=step)
    assert evaluate(ones)["metrics/total"] == pytest.approx(8 * wanted)


def test_a_batch_without_a_feature_of_the_model_is_refused():
    model_fn = model_fn_of(Slope, {"targets": 2}, train_steps=10)
    with pytest.raises(ValueError, match="takes x, and the problem gives y: x is missing"):
        model_fn(None, {"y": None}, ModeKeys.TRAIN, make_hparams())


def test_a_model_that_reads_no_inputs_is_refused_for_pairs():
    hparams = registry.hparams("transformer_lm_plain_tiny")
    model = registry.model("transformer_lm")(hparams, {"targets": 9})
    with pytest.raises(ValueError, match="that does, such as transformer, transformer_moe_encdec"):
        model.check_features(registry.model("transformer").takes)
