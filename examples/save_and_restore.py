"""A custom training loop that saves checkpoints and resumes from them, on any mesh.

    python examples/save_and_restore.py run --steps=10
    python examples/save_and_restore.py run --steps=20 --mesh_shape="data:2;model:2"

The second command resumes at step 10, on four devices instead of one. Each command can be
interrupted at any time and started again. With several processes (docs/many_processes.md), the code
is the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import t2tp
from t2tp import mtf

SAVE_STEPS = 5

BATCH, D_IN = mtf.Dimension("batch", 16), mtf.Dimension("d_in", 8)
D_FF, D_OUT = mtf.Dimension("d_ff", 32), mtf.Dimension("d_out", 8)


def step_fn(mesh: t2tp.Mesh, features: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
    """Trains an MLP to reproduce its input."""
    x = features["x"]
    w_in = mtf.get_variable(mesh, "w_in", mtf.Shape([D_IN, D_FF]))
    w_out = mtf.get_variable(mesh, "w_out", mtf.Shape([D_FF, D_OUT]))
    h = mtf.relu(mtf.einsum([x, w_in], output_shape=[BATCH, D_FF]))
    y = mtf.einsum([h, w_out], output_shape=[BATCH, D_OUT])
    loss = mtf.reduce_mean(mtf.square(y - mtf.rename_dimension(x, "d_in", "d_out")))
    # Adafactor's own variables are saved and restored along with the weights.
    optimizer = mtf.optimize.AdafactorOptimizer(learning_rate=0.05)
    optimizer.apply_grads(mtf.gradients([loss], [w_in, w_out]), mesh.graph.trainable_variables)
    return {"loss": loss}


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains up to a number of steps, counted from the first start."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", help="of the checkpoints")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--mesh_shape", default="")
    args = parser.parse_args(arguments)
    program = t2tp.Program(
        step_fn,
        {"x": t2tp.Feature(mtf.Shape([BATCH, D_IN]))},
        mesh_shape=args.mesh_shape,
        layout="batch:data;d_ff:model",
    )
    first_step = t2tp.restore_checkpoint(args.directory, program, missing_ok=True)
    for step in range(first_step, args.steps):
        # A function of the step alone, so that a resumed run has the same data.
        x = np.random.default_rng(step).normal(size=(BATCH.size, D_IN.size))
        loss = program({"x": x}, step=step)["loss"]
        print(f"step {step}: loss {float(loss):.4f}")
        if (step + 1) % SAVE_STEPS == 0:
            t2tp.save_checkpoint(args.directory, program, step + 1, max_to_keep=3)


if __name__ == "__main__":
    main()
