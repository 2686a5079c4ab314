"""A mesh-tensorflow program ported to t2tp: see docs/porting.md.

    python examples/ported_program.py [CHECKPOINT]

The model is unchanged. Its `model_fn` for Estimator has become `step_fn`; weights are loaded from a
mesh-tensorflow checkpoint if one is given.
"""

from __future__ import annotations

import sys

import t2tp.mtf_compat  # isort: skip  # from here on mesh_tensorflow is t2tp's
import mesh_tensorflow as mtf
import numpy as np
import tensorflow.compat.v1 as tf

import t2tp

batch_dim = mtf.Dimension("batch", 16)
pixels_dim = mtf.Dimension("pixels", 8)
classes_dim = mtf.Dimension("classes", 4)
hidden_dim = mtf.Dimension("hidden", 32)


def model(mesh, images, labels):
    """Computes the logits and the loss of two layers; unchanged."""
    x = mtf.import_tf_tensor(mesh, images, mtf.Shape([batch_dim, pixels_dim]))
    labels = mtf.import_tf_tensor(mesh, labels, mtf.Shape([batch_dim]))
    h = mtf.layers.dense(x, hidden_dim, activation=mtf.relu, name="hidden")
    logits = mtf.layers.dense(h, classes_dim, name="logits")
    one_hot = mtf.one_hot(labels, classes_dim)
    loss = mtf.layers.softmax_cross_entropy_with_logits(logits, one_hot, classes_dim)
    return logits, mtf.reduce_mean(loss)


def step_fn(mesh, features):
    """Replaces `model_fn`, without graph, mesh implementation, lowering, hooks and saver."""
    logits, loss = model(mesh, features["images"], features["labels"])
    variables = mesh.graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    optimizer = mtf.optimize.AdafactorOptimizer(learning_rate=0.01)
    optimizer.apply_grads(gradients, variables)
    return {"loss": loss, "classes": mtf.argmax(logits, classes_dim)}


def load(variables, checkpoint):
    """Restores variables from a mesh-tensorflow checkpoint; returns the names that it lacks."""
    reader = tf.train.load_checkpoint(checkpoint)
    names = reader.get_variable_to_shape_map()
    for variable in variables:
        if variable.spec.name in names:
            variable.assign(reader.get_tensor(variable.spec.name))
    return [v.spec.name for v in variables if v.spec.name not in names]


def main(checkpoint=None):
    """Trains for five steps."""
    program = t2tp.Program(
        step_fn,
        {
            "images": t2tp.Feature(mtf.Shape([batch_dim, pixels_dim])),
            "labels": t2tp.Feature(mtf.Shape([batch_dim]), tf.int32),
        },
        mesh_shape="rows:2;columns:2",
        layout="batch:rows;hidden:columns",
    )
    if checkpoint:
        print("not in the checkpoint:", load(program.variables, checkpoint))
    images = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")
    labels = images[:, :4].argmax(-1)
    for step in range(5):
        outputs = program({"images": images, "labels": labels}, step=step)
        print(f"step {step}  loss {outputs['loss']:.5f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
