"""Measures how long the stages of a pipeline wait, compared with the schedule's table.

    python benchmarks/pipeline_idle.py [--microbatches=8] [--steps=10]

A pipeline of two stages runs in two processes, each on its own core; prints `pipeline_idle_share`
of the median step. Four stages would share two cores, so they are simulated: the schedule's table
(`t2tp.planner.stages.timing`) runs with half of the seconds measured with two stages, because each
of the four stages has half as many layers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1))
# Fractions of a stage's time that forward passes and the two parts of backward passes take.
FORWARD, BY_INPUTS, BY_WEIGHTS = 1 / 3, 1 / 3, 1 / 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--size", default="deep", help="of the model; see language_model.py")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        _work(args, *args.worker)
        return
    print("| schedule | stages | idle share by the table | measured |")
    print("| -- | -- | -- | -- |")
    for schedule, chunks in SCHEDULES:
        shares, seconds = _measured(args, schedule, chunks)
        even = _by_table(schedule, 2, args.microbatches, chunks, [1.0, 1.0])
        print(f"| {schedule} | 2 | {even:.1%} | {statistics.mean(shares):.1%} |")
        even = _by_table(schedule, 4, args.microbatches, chunks, [1.0] * 4)
        halves = [s / 2 for s in seconds for _ in range(2)]
        run = _by_table(schedule, 4, args.microbatches, chunks, halves)
        print(f"| {schedule} | 4 | {even:.1%} | {run:.1%}, simulated |", flush=True)


def _measured(
    args: argparse.Namespace, schedule: str, chunks: int
) -> tuple[list[float], list[float]]:
    """Returns each stage's idle fraction, and the seconds of a step in which it computes."""
    with tempfile.TemporaryDirectory() as directory:
        cores = sorted(os.sched_getaffinity(0))
        workers = [
            subprocess.Popen(
                [
                    *("taskset", "-c", str(cores[rank % len(cores)]), sys.executable, __file__),
                    *(f"--microbatches={args.microbatches}", f"--steps={args.steps}"),
                    *(f"--size={args.size}", "--worker", f"{schedule}:{chunks}"),
                    *(str(rank), directory),
                ],
                stderr=subprocess.DEVNULL,
                env=os.environ | {"TF_NUM_INTRAOP_THREADS": "1"},
            )
            for rank in range(2)
        ]
        if any([worker.wait() for worker in workers]):
            raise SystemExit(f"{schedule}: a process failed")
        lines = (Path(directory) / "idle").read_text("utf-8").split()
    first, second, step = map(float, lines)
    return [first, second], [(1 - first) * step, (1 - second) * step]


def _by_table(
    schedule: str, stages: int, microbatches: int, chunks: int, busy: list[float]
) -> float:
    """Returns the idle fraction of a schedule whose stages compute for `busy` seconds in a step."""
    from t2tp.pipeline.schedule import Action
    from t2tp.planner.stages.timing import Table

    table = Table(schedule, stages, microbatches, chunks)
    shares = {Action.FORWARD: FORWARD, Action.BACKWARD: BY_INPUTS + BY_WEIGHTS}
    if table.splits_backward:
        shares |= {Action.BACKWARD: BY_INPUTS, Action.WEIGHTS: BY_WEIGHTS}
    seconds = [
        {
            (action, chunk): total * share / (microbatches * chunks)
            for action, share in shares.items()
            for chunk in range(chunks)
        }
        for total in busy
    ]
    return table.run(seconds, [0.0] * chunks).idle_share


def _work(args: argparse.Namespace, schedule: str, rank: str, directory: str) -> None:
    """Trains one of two stages."""
    sys.path[:0] = [str(HERE), str(HERE / "peers")]
    import time

    import language_model as lm
    import numpy as np
    import ours_model
    import tensorflow as tf

    import t2tp
    from t2tp import optim
    from t2tp.mesh.layout import Layout

    name, chunks = schedule.split(":")
    sizes = lm.SIZES[args.size]
    changes = (
        f"layout={ours_model.LAYOUT};layers:stage,microbatches={args.microbatches}"
        f",pipeline_schedule={name},pipeline_chunks={chunks}"
    )
    model = ours_model.model(sizes, "float32", mesh_shape="stage:2;data:1;model:1", changes=changes)
    # The first process chooses a port, and writes it to a file for the second process.
    rendezvous = Path(directory) / "port"
    if rank == "0":
        import socket

        with socket.socket() as free:
            free.bind(("localhost", 0))
            chosen = free.getsockname()[1]
        (Path(directory) / "new").write_text(str(chosen), "utf-8")
        (Path(directory) / "new").rename(rendezvous)
    while not rendezvous.exists():
        time.sleep(0.05)
    port = rendezvous.read_text("utf-8")
    cluster = t2tp.connect(
        2, num_processes=2, process_id=int(rank), coordinator=f"localhost:{port}"
    )

    def step_fn(mesh, features):
        def loss_fn(part):
            return model.loss(mesh, part, training=True)

        done = optim.train_step(loss_fn, features, mesh, model.hparams, train_steps=1000)
        return {"loss": done.loss} | {k: x for k, x in done.scalars.items() if "idle" in k}

    feature = t2tp.Feature(f"batch:{sizes.batch};length:{sizes.length}", tf.int32)
    names = ("targets", "targets_segmentation", "targets_position")
    program = t2tp.Program(
        step_fn,
        dict.fromkeys(names, feature),
        layout=Layout.from_hparams(model.hparams),
        cluster=cluster,
    )
    targets = lm.targets(sizes)
    positions = np.broadcast_to(np.arange(sizes.length, dtype=np.int32), targets.shape)
    batch = program.place(
        dict(zip(names, (targets, np.ones_like(targets), positions), strict=True))
    )
    shares, times = [], []
    for number in range(args.steps + 3):
        begin = time.perf_counter()
        out = program(batch, step=number)
        idle = [float(out[f"pipeline_idle_share_stage_{i}"]) for i in range(2)]
        times.append(time.perf_counter() - begin)
        shares.append(idle)
    if rank == "0":
        medians = [statistics.median(x) for x in zip(*shares[3:], strict=True)]
        found = [*medians, statistics.median(times[3:])]
        (Path(directory) / "idle").write_text(" ".join(map(str, found)), "utf-8")


if __name__ == "__main__":
    main()
