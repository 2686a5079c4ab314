"""Times causal attention over a split length, forward and backward, in three ways.

    python benchmarks/context_parallel.py [--devices=2] [--length=4096] [--kv_heads=4] [--alone]

With *contiguous*, a device computes consecutive queries. With *balanced*, it computes an early and
a late part of the queries, in head-tail order. The third way, *ring*, is ring attention. A step has
three layers; in head-tail order, tensors are not reordered between layers. Each device is a process
on one core, and the three ways run in turns.

For each way, two figures are printed: the wall time of a step, and the CPU time of the busiest
device. If the machine has a core for each device, the wall time counts. If it has fewer, as for
`--devices=4` on two cores, the CPU time counts, because waiting devices leave their cores to
others. `--alone` times only the computation of the busiest device in one layer, in one process,
without communication.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.ops.attention import blockwise
from t2tp.ops.attention.api import attention
from t2tp.ops.attention.blocks import KeyRange, Queries
from t2tp.ops.attention.mask import Mask
from t2tp.ops.attention.operation import Options
from t2tp.ops.attention.score_terms import ScoreTerms

LAYERS, HEADS, D_KV = 3, 4, 64


def program_of(cluster: t2tp.Cluster, length: int, kv_heads: int, method: str) -> t2tp.Program:
    """Returns a program with some layers of self-attention and their gradients."""
    groups = mtf.Dimension("groups", HEADS // kv_heads)
    kv = mtf.Dimension("kv_heads", kv_heads)

    def layer(x):
        batch, _, positions, d_kv = x.shape.dims
        k = mtf.reshape(x, [batch, groups, kv, positions, d_kv])
        k = mtf.reduce_mean(k, output_shape=[batch, kv, positions, d_kv])
        k = mtf.rename_dimension(k, "length", "memory")
        return attention(x, k, k, causal=True, method=method)

    def step(mesh, features):
        x = y = features["x"]
        for _ in range(LAYERS):
            y = layer(y)
        (dx,) = mtf.gradients([mtf.reduce_sum(mtf.square(y))], [x])
        return {"norm": mtf.reduce_sum(mtf.square(dx))}

    return t2tp.Program(
        step,
        {"x": t2tp.Feature(f"batch:1;heads:{HEADS};length:{length};d_kv:{D_KV}")},
        mesh_shape=f"seq:{len(cluster.devices)}",
        layout="length:seq;memory:seq",
        cluster=cluster,
    )


def measure_alone(arguments: argparse.Namespace) -> None:
    """Prints the seconds of the busiest device's computation, contiguous and balanced."""
    n, size = arguments.devices, arguments.length // arguments.devices
    tf.config.threading.set_intra_op_parallelism_threads(1)
    ways = {
        "contiguous": [Queries(size, n, n - 1)],
        "balanced": [Queries(size // 2, 2 * n, half) for half in (0, 2 * n - 1)],
    }
    steps = {name: step_of(parts, arguments.length) for name, parts in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(1 + arguments.turns):
        for name, step in steps.items():
            begin = time.process_time()
            step()
            if turn:
                seconds[name].append(time.process_time() - begin)
    first = statistics.median(seconds["contiguous"])
    for name, each in seconds.items():
        median = statistics.median(each)
        print(f"{name}, the busiest of {n} alone: {1e3 * median:.0f} ms ({median / first:.2f})")


def step_of(parts: list[Queries], length: int) -> Callable[[], object]:
    """Returns a function that computes a device's queries against all keys, and the gradients."""
    values = np.random.default_rng(0).normal(size=[1, HEADS, length, D_KV]).astype(np.float32)
    masks = [Mask(part, KeyRange(length), causal=True) for part in parts]
    terms = [
        ScoreTerms(mask, None, None, blockwise.query_block_of(mask.queries.size, None))
        for mask in masks
    ]

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        kv = blockwise.cut(x, blockwise.key_block_of(length, HEADS, None))
        qs = [x[:, :, part.begin : part.begin + part.size] for part in parts]
        by_query = [
            (q, blockwise.mean_weight_gradient(y, y), log, y)
            for q, (y, log) in zip(qs, blockwise.forward(qs, (kv, kv), terms), strict=True)
        ]
        grads, (dk, dv) = blockwise.backward(by_query, (kv, kv), terms)
        return [*(y for *_, y in by_query), *(each.q for each in grads), dk, dv]

    return lambda: [x.numpy() for x in step(tf.constant(values))]


def measure(arguments: argparse.Namespace) -> None:
    """Times the three ways as one of the processes, and writes the medians to a file."""
    n, number = arguments.devices, arguments.process_id
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    cluster = t2tp.connect(n, num_processes=n, process_id=number, coordinator=arguments.coordinator)
    kv_heads, shape = arguments.kv_heads, [1, HEADS, arguments.length, D_KV]
    batch = {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    programs = {}
    with mock.patch.object(Options, "is_balanced_by_order", False):
        programs["contiguous"] = program_of(cluster, arguments.length, kv_heads, "blockwise")
        programs["contiguous"](batch)["norm"]
    for name, method in (("balanced", "blockwise"), ("ring", "ring")):
        programs[name] = program_of(cluster, arguments.length, kv_heads, method)
        programs[name](batch)["norm"]
    norms = {name: float(program(batch)["norm"]) for name, program in programs.items()}
    for norm in norms.values():
        np.testing.assert_allclose(norm, norms["contiguous"], rtol=1e-4)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(arguments.turns):
        for name, program in programs.items():
            begin = (time.perf_counter(), time.process_time())
            float(program(batch)["norm"])
            end = (time.perf_counter(), time.process_time())
            seconds[name].append((end[0] - begin[0], end[1] - begin[1]))
    medians = {
        name: [statistics.median(each) for each in zip(*turns, strict=True)]
        for name, turns in seconds.items()
    }
    (Path(arguments.results) / str(number)).write_text(json.dumps(medians))


def report(by_process: list[dict[str, list[float]]]) -> None:
    """Prints the times of each way, and their ratios to the times of the first way."""
    first: list[float] = []
    for name in by_process[0]:
        wall, busiest = (max(medians[name][i] for medians in by_process) for i in (0, 1))
        first = first or [wall, busiest]
        print(
            f"{name}: {1e3 * wall:.0f} ms ({wall / first[0]:.2f}); the busiest of"
            f" {len(by_process)} devices: {1e3 * busiest:.0f} ms ({busiest / first[1]:.2f})"
        )


def main() -> None:
    """Starts a process for each device."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--kv_heads", type=int, default=HEADS, help=f"of {HEADS} heads")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--process_id", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    parser.add_argument("--results", help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help="time only the busiest device")
    arguments = parser.parse_args()
    if arguments.alone:
        measure_alone(arguments)
        return
    if arguments.process_id is not None:
        measure(arguments)
        return
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, *sys.argv, f"--coordinator=localhost:{port}"]
        processes = [
            subprocess.Popen([*command, f"--process_id={number}", f"--results={results}"])
            for number in range(arguments.devices)
        ]
        code = max(process.wait() for process in processes)
        if not code:
            files = (Path(results) / str(number) for number in range(arguments.devices))
            report([json.loads(file.read_text()) for file in files])
    sys.exit(code)


if __name__ == "__main__":
    main()
