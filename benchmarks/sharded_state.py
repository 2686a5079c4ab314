"""Memory of a step whose variables are sharded at rest, in processes that share a machine.

    python benchmarks/sharded_state.py [--processes=1,2,4,8] [--stages=0,3] [--layers=20]
    python benchmarks/sharded_state.py --processes=8 --stages=3 --gigabytes=2.6

A transformer of 1 GB of weights, trained with Adam. Each process has one device. Resident memory is
that of /proc: *at rest* is what the variables and the optimizer's state add to it before the first
step, *steps* the most that some steps add to that. *bound*: the weights of 1 + prefetch layers,
and the gradients as they are at rest, whose norm needs all of them. What exceeds it are
activations, the traced program, weights outside of layers, and what TensorFlow's allocator keeps.
With --gigabytes, no process may map more memory than this (`ulimit -v`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

STEPS = 3
LENGTH, VOCAB_SIZE = 32, 1024
FEATURES = ("targets", "targets_segmentation", "targets_position")


def main() -> int:
    args = _arguments()
    if "RANK" in os.environ:
        print(json.dumps(measured(args)))
        return 0
    print("| processes | stage | state | variables | at rest | steps | bound | s | losses |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for count in map(int, args.processes.split(",")):
        for stage in map(int, args.stages.split(",")):
            if count == 1 and stage > 0:
                continue  # There is nobody to share with.
            print(_line(count, stage, _started(count, stage)), flush=True)
    return 0


def _line(count: int, stage: int, found: Sequence[dict]) -> str:
    """A row of the table: of the process that is worst."""
    worst = {name: max(each[name] for each in found) for name in found[0] if name != "losses"}
    sizes = [f"{worst[name] / 1e6:,.0f} MB" for name in ("whole", "held", "rest", "step", "bound")]
    share = f"{sizes[1]}, {worst['held'] / worst['whole']:.4f}"
    losses = ", ".join(f"{loss:.5f}" for loss in found[0]["losses"])
    cells = [str(count), str(stage), sizes[0], share, *sizes[2:], f"{worst['seconds']:.2f}", losses]
    return f"| {' | '.join(cells)} |"


def _started(count: int, stage: int) -> list[dict]:
    """What each of several processes says."""
    from t2tp.mesh.rendezvous import free_port

    own = os.environ | {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTRAOP_THREADS": "1",
        "WORLD_SIZE": str(count),
        "STAGE": str(stage),
        "COORDINATOR": f"localhost:{free_port()}",
        # Freed blocks go back at once, so that the peak is what is held. (oneDNN's pool, which
        # TensorFlow allocates from, doubles what it has, and gives nothing back.)
        "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
        "MALLOC_MMAP_THRESHOLD_": "1000000",
        "MALLOC_TRIM_THRESHOLD_": "1000000",
        "MALLOC_ARENA_MAX": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            stdout=subprocess.PIPE,
            text=True,
            env=own | {"RANK": str(rank)},
        )
        for rank in range(count)
    ]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"{count} processes, stage {stage}: one of them failed.")
    return [json.loads(text.splitlines()[-1]) for text in said]


def measured(args: argparse.Namespace) -> dict[str, object]:
    """What this process holds and uses, in bytes, seconds of a step, and losses."""
    if args.gigabytes:
        limit = int(args.gigabytes * 1e9)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    import numpy as np
    import tensorflow as tf

    import t2tp
    import t2tp.hparams
    import t2tp.models
    from t2tp import optim, registry
    from t2tp.mesh.layout import Layout

    count = int(os.environ["WORLD_SIZE"])
    hparams = registry.hparams("transformer_lm_tiny")
    hparams.parse(
        f"d_model={args.d_model},d_ff={4 * args.d_model},num_heads={args.d_model // 64},d_kv=64,"
        f"num_hidden_layers={args.layers},max_length={LENGTH},layer_prepostprocess_dropout=0.0,"
        "optimizer=adam,clip_grad_norm=1.0,learning_rate_schedule=constant,"
        "learning_rate_constant=0.0002,"
        f"mesh_shape=data:{count},layout=batch:data,"
        f"zero_stage={os.environ['STAGE']},zero_prefetch={args.prefetch}"
    )
    model = registry.model("transformer_lm")(hparams, {"targets": VOCAB_SIZE})

    def step(mesh, features):
        loss = model.loss(mesh, features, training=True).loss
        optim.apply_gradients(loss, mesh, hparams, train_steps=1000)
        return {"loss": loss}

    cluster = t2tp.connect(
        count,
        num_processes=count,
        process_id=int(os.environ["RANK"]),
        coordinator=os.environ["COORDINATOR"],
    )
    feature = t2tp.Feature(f"batch:{args.batch};length:{LENGTH}", tf.int32)
    layout = Layout.from_hparams(hparams)
    begin = _resident("VmRSS")
    program = t2tp.Program(step, dict.fromkeys(FEATURES, feature), layout=layout, cluster=cluster)
    targets = np.random.default_rng(0).integers(1, VOCAB_SIZE, (args.batch, LENGTH), np.int32)
    batch = {
        "targets": targets,
        "targets_segmentation": np.ones_like(targets),
        "targets_position": np.broadcast_to(np.arange(LENGTH, dtype=np.int32), targets.shape),
    }
    rest = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # The peak begins again.
    losses, seconds = [], []
    for number in range(STEPS):
        start = time.perf_counter()
        losses.append(float(program(batch, step=number)["loss"]))
        seconds.append(time.perf_counter() - start)
    peak = _resident("VmHWM")
    held = sum(x.numpy().nbytes for v in program.variables for x in v.slices)
    whole = sum(4 * v.spec.shape.size for v in program.variables)
    weights = sum(4 * v.spec.shape.size for v in program.variables if v.spec.trainable)
    in_a_layer = sum(
        4 * v.spec.shape.size
        for v in program.variables
        if v.spec.trainable and v.spec.name.startswith("layer_00/")
    )
    return {
        "whole": whole,
        "held": held,
        "rest": rest - begin,
        "step": peak - rest,
        "bound": (1 + args.prefetch) * in_a_layer + weights // count,
        "seconds": min(seconds),
        "losses": losses,
    }


def _resident(what: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{what}:\s+(\d+) kB", status)[1]) * 1024


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", default="1,2,4,8")
    parser.add_argument("--stages", default="0,3")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--d_model", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8, help="rows, of all processes")
    parser.add_argument("--prefetch", type=int, default=1)
    parser.add_argument("--gigabytes", type=float, default=0.0, help="that a process may map")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
