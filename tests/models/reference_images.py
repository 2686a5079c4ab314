"""References of the image classifiers in plain TensorFlow, in float64 on one device."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from t2tp.hparam import HParams

Params = Mapping[str, tf.Tensor]
Batch = Mapping[str, np.ndarray]


def loss_and_gradients(logits_of, params, batch, hparams):
    """Returns the mean loss of rows with a weight, and its gradients as `d_<name>`."""
    with tf.GradientTape() as tape:
        tape.watch(params)
        logits = logits_of(params, tf.constant(batch["inputs"], tf.float64), hparams)
        nll = -tf.gather(tf.nn.log_softmax(logits), batch["targets"], batch_dims=1)
        loss = tf.reduce_sum(nll * batch["weights"]) / batch["weights"].sum()
    gradients = tape.gradient(loss, params)
    return {"loss": loss.numpy()} | {
        f"d_{name}": tf.convert_to_tensor(gradient).numpy() for name, gradient in gradients.items()
    }


def classify(params: Params, x: tf.Tensor) -> tf.Tensor:
    return x @ params["logits/output"] + params["logits/output_bias"]


def mlp(params: Params, x: tf.Tensor, hparams: HParams) -> tf.Tensor:
    x = tf.reshape(x, [x.shape[0], -1])
    for layer in range(hparams.num_hidden_layers):
        matrix = params[f"layer_{layer:02d}/input"]
        matrix = tf.reshape(matrix, [-1, matrix.shape[-1]])
        x = tf.nn.relu(x @ matrix + params[f"layer_{layer:02d}/input_bias"])
    return classify(params, x)


def resnet(params: Params, x: tf.Tensor, hparams: HParams) -> tf.Tensor:
    def convolved(x, scope, stride=1):
        y = tf.nn.conv2d(x, params[f"{scope}/filters"], stride, "SAME")
        if hparams.norm_type == "group":
            grouped = tf.reshape(y, [*y.shape[:3], hparams.norm_groups, -1])
            mean, variance = tf.nn.moments(grouped, [1, 2, 4], keepdims=True)
            y = tf.reshape((grouped - mean) / tf.sqrt(variance + hparams.norm_epsilon), y.shape)
        else:
            mean, variance = tf.nn.moments(y, [0, 1, 2])
            y = (y - mean) / tf.sqrt(variance + hparams.norm_epsilon)
        return y * params[f"{scope}/norm_scale"] + params[f"{scope}/norm_offset"]

    is_large = hparams.stem == "imagenet"
    x = tf.nn.relu(convolved(x, "stem", 2 if is_large else 1))
    if is_large:
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    strided = 1 if hparams.block == "bottleneck" else 0
    for stage, layers in enumerate(hparams.layer_sizes):
        for layer in range(layers):
            scope = f"stage_{stage}/layer_{layer:02d}"
            stride = 2 if stage and not layer else 1
            y, last = x, 2 if strided else 1
            for number in range(last + 1):
                y = convolved(
                    y, f"{scope}/convolution_{number}", stride if number == strided else 1
                )
                y = tf.nn.relu(y) if number < last else y
            if f"{scope}/shortcut/filters" in params:
                x = convolved(x, f"{scope}/shortcut", stride)
            x = tf.nn.relu(x + y)
    return classify(params, tf.reduce_mean(x, [1, 2]))
