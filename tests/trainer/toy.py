"""A regression small enough for tests of the trainer: y = x w, learned by gradient descent."""

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.program.program import Feature
from t2tp.trainer.inputs.inputs import Inputs
from t2tp.trainer.model_fn import EstimatorSpec, ModeKeys

BATCH, D_IN, D_OUT = 8, 6, 4


def model_fn(mesh, features, mode, hparams):
    """Computes the mean squared error of x w, where w is [d_in, d_out]."""
    x = features["x"]
    d_in, d_out = mtf.Dimension("d_in", D_IN), mtf.Dimension("d_out", hparams.get("d_out", D_OUT))
    w = mtf.get_variable(
        mesh, "w", mtf.Shape([d_in, d_out]), initializer=tf1.random_normal_initializer(stddev=1.0)
    )
    y = mtf.einsum([x, w], reduced_dims=[d_in])
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"y": y})
    error = mtf.square(y - features["y"])
    loss = mtf.reduce_mean(error)
    metrics = {"error": mtf.reduce_sum(error), "tokens": mtf.reduce_sum(mtf.ones_like(error))}
    if mode == ModeKeys.TRAIN:
        variables = mesh.graph.trainable_variables
        gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
        rate = mtf.constant(mesh, hparams["learning_rate"], dtype=tf.float32)
        if hparams.get("momentum", True):
            optimizer = mtf.optimize.MomentumOptimizer(rate, 0.9)
        else:
            optimizer = mtf.optimize.SgdOptimizer(rate)
        optimizer.apply_grads(gradients, variables)
    return EstimatorSpec(mode, loss, metrics, scalars={"w_sum": mtf.reduce_sum(w)})


class Stream:
    """Batches of the regression; the step is the seed of its batch."""

    def __init__(self, length: int = 5) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        x = np.random.default_rng(step).normal(size=[BATCH, D_IN]).astype(np.float32)
        return {"x": x, "y": np.cumsum(x, axis=1)[:, :D_OUT]}


def inputs(stream: Stream | None = None) -> Inputs:
    """Returns the batches as inputs of an estimator."""
    features = {
        "x": Feature(f"batch:{BATCH};d_in:{D_IN}"),
        "y": Feature(f"batch:{BATCH};d_out:{D_OUT}"),
    }
    return Inputs(features, stream or Stream())
