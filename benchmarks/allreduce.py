"""Measures an all-reduce between processes: TensorFlow's over gRPC, and gloo's.

    python benchmarks/allreduce.py [--processes=4] [--megabytes=4] [--turns=40]

Each process all-reduces float32 zeros. The first process prints the medians of its wall times and
of its CPU times. On a host whose cores are always busy, the CPU time of the all-reduce adds to the
time of a training step. DistributedDataParallel uses gloo on CPUs.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

TORCH = Path(__file__).parent / "environments" / "torch" / "bin" / "python"


def tensorflow_step(args: argparse.Namespace) -> Callable[[], object]:
    """Returns a function that runs a t2tp program with one sum over its devices."""
    import tensorflow as tf

    import t2tp
    from t2tp import mtf

    n = args.processes
    elements = int(args.megabytes * 250_000)
    cluster = t2tp.connect(
        n, num_processes=n, process_id=args.process_id, coordinator=f"localhost:{args.port}"
    )

    def step(mesh: mtf.Mesh, features: dict) -> dict:
        summed = mtf.reduce_sum(features["x"], reduced_dim=mtf.Dimension("batch", n))
        return {"sum": mtf.reduce_max(summed)}

    program = t2tp.Program(
        step,
        {"x": t2tp.Feature(f"batch:{n};elements:{elements}", tf.float32)},
        mesh_shape=f"data:{n}",
        layout="batch:data",
        cluster=cluster,
    )
    batch = program.place({"x": tf.zeros([n, elements]).numpy()})
    return lambda: float(program(batch)["sum"])


def gloo_step(args: argparse.Namespace) -> Callable[[], object]:
    """Returns a function that all-reduces once."""
    import torch
    import torch.distributed

    address = f"tcp://localhost:{args.port}"
    torch.distributed.init_process_group(
        "gloo", address, rank=args.process_id, world_size=args.processes
    )
    x = torch.zeros(int(args.megabytes * 250_000))

    def step() -> float:
        torch.distributed.all_reduce(x)
        return float(x.max())

    return step


def measure(args: argparse.Namespace) -> None:
    """Times all-reduces as one of the processes; the first process prints its medians."""
    step = {"TensorFlow": tensorflow_step, "gloo": gloo_step}[args.library](args)
    seconds = []
    for turn in range(5 + args.turns):
        begin = (time.perf_counter(), time.process_time())
        step()
        end = (time.perf_counter(), time.process_time())
        if turn >= 5:
            seconds.append((end[0] - begin[0], end[1] - begin[1]))
    wall, processor = (1e3 * statistics.median(each) for each in zip(*seconds, strict=True))
    if args.process_id == 0:
        print(f"{args.library}: {wall:.1f} ms, of a processor {processor:.1f} ms", flush=True)


def main() -> None:
    """Starts the processes of one library, and then the processes of the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--turns", type=int, default=40)
    for hidden in ("--library", "--port"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--process_id", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.library:
        measure(args)
        return
    from t2tp.trainer.processes.local_processes import ALLOCATOR

    for library, python in (("TensorFlow", sys.executable), ("gloo", str(TORCH))):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        command = [python, *sys.argv, f"--library={library}", f"--port={port}"]
        own = os.environ | {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
        if library == "TensorFlow":
            own |= ALLOCATOR
        processes = [
            subprocess.Popen([*command, f"--process_id={number}"], env=own)
            for number in range(args.processes)
        ]
        if any([process.wait() for process in processes]):
            sys.exit(1)


if __name__ == "__main__":
    main()
