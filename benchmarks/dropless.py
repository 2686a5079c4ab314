"""Compares the processor time of dropless experts with a capacity factor of 1.25.

    python benchmarks/dropless.py [--size=design] [--turns=30]

Both programs train the layer of `layer_sizes.py`, with data whose router sends an equal number of
tokens to each expert. They run in turns in one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from layer_sizes import EXPERTS, LEARNING_RATE, Experts

import t2tp
from t2tp import mtf
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.gating import RoutingConfig
from t2tp.layers.mixture_of_experts import MixtureOfExperts

MESHES = {"1x1": "", "2x2": "data:2;model:2"}


def make_program(sizes: Experts, mesh_shape: str, mlp: str, dispatch: str) -> t2tp.Program:
    """Returns a program that trains the layer by gradient descent."""
    routing = RoutingConfig(
        sizes.experts, "top_2", capacity_factor_train=sizes.capacity_factor, dispatch=dispatch
    )
    experts = MixtureOfExperts(routing, FeedForward(mlp, sizes.d_ff))
    feature = t2tp.Feature(f"batch:{sizes.batch};length:{sizes.length};d_model:{sizes.d_model}")

    def step_fn(mesh: t2tp.Mesh, features: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        y, sums = experts(features["inputs"], training=True)
        loss = mtf.reduce_mean(mtf.square(y - features["targets"]))
        learned = [v for v in mesh.graph.trainable_variables if v.name != "router"]
        gradients = mtf.gradients([loss], [v.outputs[0] for v in learned])
        for variable, gradient in zip(learned, gradients, strict=True):
            mtf.assign_sub(variable, LEARNING_RATE * gradient)
        return {"loss": loss, "dropped": sums.dropped}

    layout = "batch:data;experts:data;d_ff:model" if mesh_shape else ""
    program = t2tp.Program(
        step_fn, {"inputs": feature, "targets": feature}, mesh_shape=mesh_shape, layout=layout
    )
    # The router's weights are an identity matrix: a token's first elements are its expert logits.
    router = program.variables["router"]
    for pnum in program.cluster.local_pnums:
        whole = np.eye(sizes.d_model, sizes.experts, dtype=np.float32)
        router.slice_of(pnum).assign(whole[program.layout.slices(router.spec.shape, pnum)])
    return program


def measure(sizes: Experts, mesh: str, mlp: str, turns: int) -> str:
    """Returns the table row of a mesh and an expert's network."""
    inputs, targets = sizes.data()
    tokens = np.arange(sizes.batch * sizes.length).reshape(inputs.shape[:-1])
    for choice, logit in ((0, 9.0), (1, 8.0)):
        np.put_along_axis(inputs, ((tokens + choice) % sizes.experts)[..., None], logit, -1)
    programs = [make_program(sizes, MESHES[mesh], mlp, name) for name in ("dropless", "capacity")]
    placed = [each.place({"inputs": inputs, "targets": targets}) for each in programs]
    seconds: list[list[float]] = [[], []]
    for turn in range(turns + 2):
        for program, batch, times in zip(programs, placed, seconds, strict=True):
            begin = time.process_time()
            out = program(batch)
            assert float(out["loss"]) > 0 and float(out["dropped"]) == 0
            if turn > 1:
                times.append(time.process_time() - begin)
    dropless, capacity = (1e3 * statistics.median(times) for times in seconds)
    return f"| {mesh} | {mlp} | {dropless:.0f} | {capacity:.0f} | {dropless / capacity:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=EXPERTS, default="design")
    parser.add_argument("--turns", type=int, default=30)
    args = parser.parse_args()
    t2tp.connect(4)  # The devices of the largest mesh.
    print("| mesh | network | dropless, ms | capacity, ms | ratio |\n| -- | -- | -- | -- | -- |")
    for mesh in MESHES:
        for mlp in ("relu", "swiglu"):
            print(measure(EXPERTS[args.size], mesh, mlp, args.turns), flush=True)


if __name__ == "__main__":
    main()
