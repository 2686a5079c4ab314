"""Measures how checkpoints slow training down, and how fast they are saved and restored.

    python benchmarks/checkpointing.py [--mb=200] [--mesh=data:2;model:2] [--directory=DIR] \
        [--turns=5]

A model of the given size (float32, one matrix per layer) trains on virtual CPU devices by plain
gradient descent, so a checkpoint contains only the weights. The costs of a save are medians over
turns:

- *pause*: time until training can continue, while the files are written in the background;
- *lost*: extra time of `--steps` steps if a save begins before the first of them;
- *in turn*: the same extra time if training waits until the files are written;
- *CPU*: processor time of a save. It is the save's cost if no core is idle, and hardly depends on
  the load of the machine.

The rates of saving (write, fsync and checksums), restoring and verifying are compared with a plain
copy of a file of the same size (read, write, fsync).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.checkpoint import Retention, latest
from t2tp.checkpoint.variables import restore
from t2tp.mesh.layout import Layout
from t2tp.trainer.run_dir.run_saver import RunSaver

LAYERS, BATCH = 8, 512


def make_program(megabytes: int, mesh_shape: str) -> tuple[t2tp.Program, dict[str, np.ndarray]]:
    """Makes a program that trains a chain of square matrices of this total size, and its batch."""
    width = int((megabytes * 1e6 / 4 / LAYERS) ** 0.5) // 64 * 64
    batch, rows = mtf.Dimension("batch", BATCH), mtf.Dimension("rows", width)
    columns = mtf.Dimension("columns", width)

    def step_fn(mesh: mtf.Mesh, features: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        x = features["x"]
        for layer in range(LAYERS):
            w = mtf.get_variable(mesh, f"w{layer}", mtf.Shape([rows, columns]))
            x = mtf.rename_dimension(mtf.einsum([x, w], reduced_dims=[rows]), "columns", "rows")
        loss = mtf.reduce_mean(mtf.square(x))
        variables = mesh.graph.trainable_variables
        gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
        mtf.optimize.SgdOptimizer(1e-3).apply_grads(gradients, variables)
        return {"loss": loss}

    features = {"x": t2tp.Feature(mtf.Shape([batch, rows]))}
    program = t2tp.Program(
        step_fn, features, mesh_shape=mesh_shape, layout="batch:data;columns:model"
    )
    x = np.random.default_rng(0).normal(size=[BATCH, width]).astype(np.float32)
    return program, {"x": x}


def seconds_of(task: Callable[[], object]) -> float:
    """Returns how long a task takes."""
    begun = time.perf_counter()
    task()
    return time.perf_counter() - begun


class Bench:
    """A program in training, and the saver of its checkpoints."""

    def __init__(
        self, program: t2tp.Program, batch: dict[str, np.ndarray], directory: Path
    ) -> None:
        self._program, self._batch, self._step = program, batch, 0
        self.saver = RunSaver(directory, program.variables, Retention(1), {})

    def train(self, steps: int) -> None:
        """Runs some steps, and waits for them."""
        for _ in range(steps):
            float(self._program(self._batch, self._step)["loss"])
            self._step += 1

    def save(self) -> None:
        """Begins a save."""
        self.saver.save(self._step)

    def save_and_train(self, steps: int) -> None:
        """Begins a save and trains, without waiting for the save."""
        self.save()
        self.train(steps)

    def save_then_train(self, steps: int) -> None:
        """Saves, waits for the end of the save, and then trains."""
        self.save()
        self.saver.wait()
        self.train(steps)


def cost_to_training(bench: Bench, turns: int, steps: int) -> dict[str, float]:
    """Returns the median seconds of a step, and of each cost of a save."""
    names = ("plain", "pause", "during", "before", "CPU of a step", "CPU of a save")
    taken: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(turns):
        begun = time.process_time()
        taken["plain"].append(seconds_of(lambda: bench.train(steps)))
        taken["CPU of a step"].append((time.process_time() - begun) / steps)
        taken["during"].append(seconds_of(lambda: bench.save_and_train(steps)))
        bench.saver.wait()
        taken["before"].append(seconds_of(lambda: bench.save_then_train(steps)))
        bench.train(1)
        begun = time.process_time()
        taken["pause"].append(seconds_of(bench.save))
        bench.saver.wait()
        taken["CPU of a save"].append(time.process_time() - begun)
        bench.train(1)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    return {
        "step": medians["plain"] / steps,
        "pause": medians["pause"],
        "lost": medians["during"] - medians["plain"],
        "in turn": medians["before"] - medians["plain"],
        "CPU": medians["CPU of a save"],
        "CPU of a step": medians["CPU of a step"],
    }


def rates(bench: Bench, program: t2tp.Program, directory: Path, turns: int) -> dict[str, float]:
    """Returns the median seconds of saving, restoring, verifying and a plain copy."""
    taken: dict[str, list[float]] = {
        name: [] for name in ("save", "restore", "verify", "plain copy")
    }
    for _ in range(turns):
        bench.train(1)
        bench.save()
        taken["save"].append(seconds_of(bench.saver.wait))
        saved = latest(directory)
        taken["restore"].append(seconds_of(lambda: restore(saved, program.variables, strict=True)))  # noqa: B023
        taken["verify"].append(seconds_of(saved.verify))
        data = [path for path in saved.path.iterdir() if "data" in path.name]
        taken["plain copy"].append(seconds_of(lambda: copy_synced(data, directory / "copy")))  # noqa: B023
    return {name: statistics.median(times) for name, times in taken.items()}


def copy_synced(sources: list[Path], target: Path) -> None:
    """Copies files into one file, waits until it is on the disk, and deletes it."""
    with open(target, "wb") as out:
        for source in sources:
            with open(source, "rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)
        out.flush()
        os.fsync(out.fileno())
    target.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--mesh", default="data:2;model:2")
    parser.add_argument("--directory", help="where to save; a temporary directory by default")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="steps of a turn")
    args = parser.parse_args()
    tf.get_logger().setLevel("ERROR")  # mesh-tensorflow logs a line for each variable.
    program, batch = make_program(args.mb, args.mesh)
    size = sum(4 * v.spec.shape.size for v in program.variables) / 1e6
    with tempfile.TemporaryDirectory(dir=args.directory) as name:
        directory = Path(name)
        bench = Bench(program, batch, directory)
        bench.train(2)
        costs = cost_to_training(bench, args.turns, args.steps)
        speeds = rates(bench, program, directory, args.turns)
    print(
        f"{size:.0f} MB on {Layout(args.mesh).size} devices; a step {1e3 * costs['step']:.0f} ms\n"
    )
    print(f"| cost of a save | ms | steps |\n|{' --- |' * 3}")
    for name in ("pause", "lost", "in turn"):
        print(f"| {name} | {1e3 * costs[name]:.0f} | {costs[name] / costs['step']:.2f} |")
    print(f"| CPU | {1e3 * costs['CPU']:.0f} | {costs['CPU'] / costs['CPU of a step']:.2f} |")
    print(f"\n| | ms | GB/s |\n|{' --- |' * 3}")
    for name, seconds in speeds.items():
        print(f"| {name} | {1e3 * seconds:.0f} | {size / 1e3 / seconds:.2f} |")


if __name__ == "__main__":
    main()
