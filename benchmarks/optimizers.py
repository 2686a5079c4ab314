"""Times the updates of optimizers, in nanoseconds per parameter, compared with plain TensorFlow.

    python benchmarks/optimizers.py --parameters 16000000 --repeats 15

Each update changes matrices of 1024 x 1024 on one device, with given gradients. The updates of t2tp
and of plain TensorFlow run in turns. Prints the median and the quartiles of each update.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import t2tp
import t2tp.optim
from t2tp import mtf, registry
from t2tp.hparams.base import base_hparams

SIZE = 1024
RATE = 1e-3


def ours(optimizer: str, count: int) -> Callable[[], object]:
    """Returns a step of a t2tp program that consists only of an optimizer's update."""
    hparams = base_hparams()

    def step(mesh, features):
        dims = mtf.Shape([mtf.Dimension("rows", SIZE), mtf.Dimension("columns", SIZE)])
        ones = tf.ones_initializer()
        variables = {
            kind: [
                mtf.get_variable(mesh, f"{kind}_{i}", dims, initializer=ones) for i in range(count)
            ]
            for kind in ("gradient", "weight")
        }
        rate = mtf.constant(mesh, RATE, dtype=tf.float32)
        registry.optimizer(optimizer)(rate, hparams).apply_grads(
            variables["gradient"], [w.operation for w in variables["weight"]]
        )
        return {"rate": rate}

    program = t2tp.Program(step, xla=False)
    return lambda: np.asarray(program(step=1)["rate"])


def plain(update: Callable[..., None], slots: list[list[int]], count: int) -> Callable[[], object]:
    """Returns a step of plain TensorFlow that runs `update` for each of `count` matrices."""
    weights = [tf.Variable(tf.ones([SIZE, SIZE])) for _ in range(count)]
    grads = [tf.Variable(tf.ones([SIZE, SIZE])) for _ in range(count)]
    slot_variables = [[tf.Variable(tf.zeros(shape)) for shape in slots] for _ in range(count)]

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        for weight, grad, own_slots in zip(weights, grads, slot_variables, strict=True):
            update(weight, grad.read_value(), *own_slots)
        return tf.constant(RATE)

    return lambda: step().numpy()


def plain_adam(weight: tf.Variable, grad: tf.Tensor, m: tf.Variable, v: tf.Variable) -> None:
    """Updates a weight by TensorFlow's fused kernel of Adam."""
    tf.raw_ops.ResourceApplyAdam(
        var=weight.handle,
        m=m.handle,
        v=v.handle,
        beta1_power=0.81,
        beta2_power=0.96,
        lr=RATE,
        beta1=0.9,
        beta2=0.98,
        epsilon=1e-9,
        grad=grad,
    )


def plain_adafactor(
    weight: tf.Variable, grad: tf.Tensor, rows: tf.Variable, columns: tf.Variable
) -> None:
    """Updates a weight by Adafactor, as the paper writes it."""
    squares = tf.square(grad) + 1e-30
    next_rows = 0.4 * rows + 0.6 * tf.reduce_mean(squares, 1, keepdims=True)
    next_columns = 0.4 * columns + 0.6 * tf.reduce_mean(squares, 0, keepdims=True)
    moments = next_rows * next_columns / tf.reduce_mean(next_rows)
    update = grad * tf.math.rsqrt(moments)
    update /= tf.maximum(1.0, tf.sqrt(tf.reduce_mean(tf.square(update))))
    scale = tf.maximum(1e-3, tf.sqrt(tf.reduce_mean(tf.square(weight))))
    rows.assign(next_rows, read_value=False)
    columns.assign(next_columns, read_value=False)
    weight.assign_sub(RATE * scale * update, read_value=False)


PLAIN = {
    "adam": (plain_adam, [[SIZE, SIZE], [SIZE, SIZE]]),
    "adafactor": (plain_adafactor, [[SIZE, 1], [1, SIZE]]),
}


def main() -> None:
    """Prints a line for each update."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=16_000_000)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    count = max(1, round(args.parameters / SIZE**2))
    steps = {f"{name}, t2tp": ours(name, count) for name in registry.list_optimizers()}
    for name, (update, slots) in PLAIN.items():
        steps[f"{name}, plain TensorFlow"] = plain(update, slots, count)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(args.repeats + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if repeat >= 2:
                seconds[name].append(time.perf_counter() - start)
    for name in sorted(seconds):
        quartiles = np.percentile(seconds[name], [25, 50, 75]) / (count * SIZE**2) * 1e9
        low, median, high = quartiles
        print(f"{name:28} {median:6.2f} ns a parameter  ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
