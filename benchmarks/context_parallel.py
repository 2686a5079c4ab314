"""Causal attention over a split length: balanced beside contiguous, forward and backward.

    python benchmarks/context_parallel.py [--devices=2] [--length=4096] [--turns=7]

Each device is a process on a core of its own, so that one that waits leaves its core idle; the
machine needs as many cores. Both take turns. The share of the busiest device is printed beside the
times.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import t2tp
from t2tp import mtf
from t2tp.ops.attention import operation
from t2tp.ops.attention.api import attention
from t2tp.ops.attention.balanced_queries import ContiguousQueries
from t2tp.ops.attention.blocks import Queries

HEADS, D_KV = 4, 64


def program_of(cluster: t2tp.Cluster, length: int) -> t2tp.Program:
    """Attention of a row to itself, and its gradients."""
    shape = f"batch:1;heads:{HEADS};length:{length};d_kv:{D_KV}"
    memory = mtf.Dimension("memory", length)

    def step(mesh, features):
        del mesh
        q = features["q"]
        k = v = mtf.rename_dimension(q, "length", memory.name)
        y = attention(q, k, v, causal=True, method="blockwise")
        (dq,) = mtf.gradients([mtf.reduce_sum(mtf.square(y))], [q])
        return {"norm": mtf.reduce_sum(mtf.square(dq))}

    return t2tp.Program(
        step,
        {"q": t2tp.Feature(shape)},
        mesh_shape=f"seq:{len(cluster.devices)}",
        layout="length:seq;memory:seq",
        cluster=cluster,
    )


def contiguous(mesh_impl, length, axis, options):
    """Each processor computes the queries that it has."""
    del options
    slices = mesh_impl.shape[axis].size
    place = mesh_impl.collectives.coordinate(axis)
    return ContiguousQueries(Queries(length.size // slices, slices, place))


def measure(arguments: argparse.Namespace) -> None:
    """Takes turns as one of the processes; the first prints the medians and their ratio."""
    n, number = arguments.devices, arguments.process_id
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[number]})
    cluster = t2tp.connect(n, num_processes=n, process_id=number, coordinator=arguments.coordinator)
    shape = [1, HEADS, arguments.length, D_KV]
    batch = {"q": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    programs = {"balanced": program_of(cluster, arguments.length)}
    programs["balanced"](batch)["norm"]
    with mock.patch.object(operation, "_queries", contiguous):
        programs["contiguous"] = program_of(cluster, arguments.length)
        programs["contiguous"](batch)["norm"]
    norms = {name: float(program(batch)["norm"]) for name, program in programs.items()}
    np.testing.assert_allclose(norms["balanced"], norms["contiguous"], rtol=1e-4)
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(arguments.turns):
        for name, program in programs.items():
            begin = time.perf_counter()
            float(program(batch)["norm"])
            seconds[name].append(time.perf_counter() - begin)
    if number:
        return
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    for name, share in (("contiguous", (2 * n - 1) / n**2), ("balanced", 1 / n)):
        print(f"{name}: {1e3 * medians[name]:.0f} ms; the busiest of {n} devices: {share:.0%}")
    print(f"balanced / contiguous: {medians['balanced'] / medians['contiguous']:.2f}")


def main() -> None:
    """Starts a process for each device."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--process_id", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process_id is not None:
        measure(arguments)
        return
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, *sys.argv, f"--coordinator=localhost:{port}"]
    processes = [
        subprocess.Popen([*command, f"--process_id={number}"])
        for number in range(arguments.devices)
    ]
    sys.exit(max(process.wait() for process in processes))


if __name__ == "__main__":
    main()
