"""A two-layer perceptron in named dimensions, trained on a mesh of 2 x 2 devices.

    python examples/mlp.py

`step_fn` describes the step of the full model and names no device. The layout splits the batch over
one axis of the mesh and the hidden layer over the other; with another mesh, or none, the losses are
the same up to rounding.
"""

from __future__ import annotations

import numpy as np

import t2tp
from t2tp import mtf

batch = mtf.Dimension("batch", 64)
d_in = mtf.Dimension("d_in", 8)
d_ff = mtf.Dimension("d_ff", 32)
classes = mtf.Dimension("classes", 4)
LEARNING_RATE = 0.5
STEPS = 50


def step_fn(mesh, features):
    """Computes the forward pass, the gradients and the update of a training step."""
    w_in = mtf.get_variable(mesh, "w_in", mtf.Shape([d_in, d_ff]))
    w_out = mtf.get_variable(mesh, "w_out", mtf.Shape([d_ff, classes]))

    h = mtf.relu(mtf.einsum([features["x"], w_in], reduced_dims=[d_in]))  # [batch, d_ff]
    logits = mtf.einsum([h, w_out], reduced_dims=[d_ff])  # [batch, classes]
    labels = mtf.one_hot(features["label"], classes)
    loss = mtf.reduce_mean(mtf.layers.softmax_cross_entropy_with_logits(logits, labels, classes))

    weights = [w_in, w_out]
    for w, gradient in zip(weights, mtf.gradients([loss], weights), strict=True):
        mtf.assign_sub(w, LEARNING_RATE * gradient)
    return {"loss": loss}


def batch_of_step(step: int) -> dict[str, np.ndarray]:
    """Returns random points; the class of a point is the argmax of its first four coordinates."""
    x = np.random.default_rng(step).normal(size=(batch.size, d_in.size)).astype("float32")
    return {"x": x, "label": x[:, : classes.size].argmax(-1)}


def main() -> None:
    """Trains, and prints the collectives of a step."""
    program = t2tp.Program(
        step_fn,
        {
            "x": t2tp.Feature(mtf.Shape([batch, d_in])),
            "label": t2tp.Feature(mtf.Shape([batch]), "int32"),
        },
        mesh_shape="data:2;model:2",
        layout="batch:data;d_ff:model",
    )
    for step in range(STEPS):
        outputs = program(batch_of_step(step), step=step)
        if step % 10 == 0 or step == STEPS - 1:
            print(f"step {step:2}  loss {outputs['loss']:.4f}")
    print(program.collectives())


if __name__ == "__main__":
    main()
