"""Times steps that run alone and steps that run in loops (`--iterations_per_loop`).

    python benchmarks/step_loops.py [--variables=1000] [--json=benchmarks/step_loops.json]

The model has many small variables, and XLA compiles its step for one CPU device. So TensorFlow's
preparation of a launch takes nearly all of the time. A fast GPU also waits for it. The sizes take
turns, and each figure is a median, because other programs may disturb some turns.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import t2tp
from t2tp import mtf

SIZES = (1, 4, 16)
STEPS = 48  # of a turn; a multiple of each size


def step_of(count: int):
    """Returns the step of a model with `count` variables of 8 elements."""
    d = mtf.Dimension("d", 8)

    def step(mesh, features):
        variables = [mtf.get_variable(mesh, f"w{i}", mtf.Shape([d])) for i in range(count)]
        x = mtf.reduce_mean(features["x"], reduced_dim=mtf.Dimension("batch", 2))
        losses = [mtf.reduce_sum(mtf.square(w - x)) for w in variables]
        updates = mtf.gradients(losses, variables)
        mtf.optimize.SgdOptimizer(0.1).apply_grads(updates, mesh.graph.trainable_variables)
        return {"loss": losses[0]}

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variables", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    features = {"x": t2tp.Feature("batch:2;d:8")}
    program = t2tp.Program(step_of(args.variables), features, xla=True)
    placed = program.place({"x": [[float(i) for i in range(8)]] * 2})
    seconds: dict[int, list[float]] = {size: [] for size in SIZES}
    losses = {}
    for _ in range(args.turns + 1):
        for size in SIZES:
            start = time.perf_counter()
            for step in range(0, STEPS, size):
                losses[size] = float(program.loop([placed] * size, step, size)[-1]["loss"])
            seconds[size].append((time.perf_counter() - start) / STEPS)
    medians = {size: statistics.median(turns[1:]) for size, turns in seconds.items()}
    figures = {
        "variables": args.variables,
        "machine": platform.processor() or platform.machine(),
        "step_ms": {str(size): round(1000 * s, 3) for size, s in medians.items()},
        "ratio_to_single": {str(size): round(s / medians[1], 3) for size, s in medians.items()},
    }
    print(json.dumps(figures, indent=1))
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
