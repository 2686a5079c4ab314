"""What the trainer adds to a step: Estimator.train beside a bare loop over its Program.

    python benchmarks/trainer_overhead.py [--mesh_shape=data:2] [--turns=7]

A perceptron of about 50 ms a step. Both take turns of 100 steps in one process, on the same program
and variables. The bare loop calls the program with inputs that are on the devices already, and does
nothing else. The trainer reads and places each batch, calls its hooks, and every 100 steps fetches
the scalars, logs a line and writes TensorBoard's events. Reported are the medians over the turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import t2tp
from t2tp import mtf
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.hooks.hook import Hook, Training
from t2tp.trainer.inputs.inputs import Inputs
from t2tp.trainer.model_fn import EstimatorSpec, ModeKeys
from t2tp.trainer.run_config import RunConfig

STEPS = 100
BATCH, D_IN, D_HIDDEN = 512, 16, 1024


def model_fn(mesh, features, mode, hparams):
    x = features["x"]
    for layer in range(hparams["layers"]):
        d_out = mtf.Dimension(f"d_{layer}", D_HIDDEN)
        w = mtf.get_variable(mesh, f"w_{layer}", mtf.Shape([x.shape.dims[-1], d_out]))
        x = mtf.tanh(mtf.einsum([x, w], reduced_dims=[x.shape.dims[-1]]))
    loss = mtf.reduce_mean(mtf.square(x - 1.0))
    variables = mesh.graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    for variable, gradient in zip(variables, gradients, strict=True):
        mtf.assign_sub(variable, 1e-4 * gradient)
    return EstimatorSpec(mode, loss)


class Stream:
    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        return {"x": np.full([BATCH, D_IN], step % 7, np.float32)}


class Timer(Hook):
    """Seconds a step, from the end of the first step to the end of the last one."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        self.ends.append(time.perf_counter())

    @property
    def seconds(self) -> float:
        return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)


def bare(program: t2tp.Program, placed) -> float:
    timer = Timer()
    for step in range(STEPS):
        outputs = program(placed, step=step)
        timer.ends.append(time.perf_counter())
    float(outputs["loss"])
    return timer.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh_shape", default="")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--layers", type=int, default=5)
    options = parser.parse_args()
    feature = t2tp.Feature(f"batch:{BATCH};d_in:{D_IN}")
    inputs = Inputs({"x": feature}, Stream())
    seconds: dict[str, list[float]] = {"bare": [], "trainer": []}
    with tempfile.TemporaryDirectory() as directory:
        config = RunConfig(
            directory,
            log_step_count_steps=STEPS,
            save_checkpoints_steps=10**9,
        )
        hparams = {"mesh_shape": options.mesh_shape, "layout": "batch:data"}
        estimator = Estimator(model_fn, config, {"layers": options.layers, **hparams})
        program = estimator.build(ModeKeys.TRAIN, inputs.features)
        placed = program.place(Stream()[0])
        bare(program, placed)
        for turn in range(options.turns):
            timer = Timer()
            estimator.train(inputs, (turn + 1) * STEPS, [timer])
            seconds["trainer"].append(timer.seconds)
            seconds["bare"].append(bare(program, placed))
    of_bare, of_trainer = (statistics.median(seconds[name]) for name in ("bare", "trainer"))
    shares = [t / b - 1 for t, b in zip(seconds["trainer"], seconds["bare"], strict=True)]
    print(
        f"bare {1e3 * of_bare:.2f} ms a step, trainer {1e3 * of_trainer:.2f} ms:"
        f" {of_trainer / of_bare - 1:+.2%} (turn by turn, median {statistics.median(shares):+.2%},"
        f" from {min(shares):+.2%} to {max(shares):+.2%})"
    )


if __name__ == "__main__":
    main()
