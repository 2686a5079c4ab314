"""Measures the memory of a step whose variables are sharded at rest, in processes on one machine.

    python benchmarks/sharded_state.py [--processes=1,2,4,8] [--stages=0,3] [--layers=7]
    python benchmarks/sharded_state.py --processes=8 --stages=3 --layers=5 --d_model=1536 \
        --gigabytes=1.5

The model is a transformer with 1 GB of state (weights, and two slots for each in Adam). Each
process has one device. Every case runs twice, with two allocators:

- TensorFlow's own allocator counts its bytes: *at rest* is the allocation before the first step,
  *peak* is the most that later steps add to it.
- glibc's allocator returns freed blocks at once, so that /proc shows the memory in use: *resident*
  is the memory of the variables, *program* is the memory that the first step adds and keeps (the
  traced program, threads, code), and *resident peak* is the most that later steps add to both.

*bound* is the expected *peak*, except for activations and a constant amount: the weights of
1 + prefetch layers and, with clipping by the global norm, one slice of all gradients, because the
norm needs all of them. --gigabytes limits the private memory of each process (`ulimit -d`:
allocations and stacks of threads, but not the code of TensorFlow); only glibc's allocator is used
then.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

from resident_memory import reset_peak, resident

STEPS = 4
STACK = 1 << 21
LENGTH, VOCAB_SIZE = 32, 1024
# TensorFlow allocates from oneDNN's pool, which grows by doubling and returns no blocks.
GLIBC = {
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
    "MALLOC_MMAP_THRESHOLD_": "1000000",
    "MALLOC_TRIM_THRESHOLD_": "1000000",
    "MALLOC_ARENA_MAX": "1",
}
COUNTING = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}
FEATURES = ("targets", "targets_segmentation", "targets_position")


def main() -> int:
    args = _arguments()
    if "RANK" in os.environ:
        print(json.dumps(measured(args)))
        return 0
    columns = "processes, stage, state, at rest, peak, bound, resident, program, resident peak, s"
    print(f"| {columns.replace(', ', ' | ')} |")
    print("| -- " * (1 + columns.count(",")) + "|")
    for count in map(int, args.processes.split(",")):
        for stage in map(int, args.stages.split(",")):
            if count == 1 and stage > 0:
                continue  # A single process has nothing to shard.
            resident = _started(count, stage, GLIBC)
            counted = resident if args.gigabytes else _started(count, stage, COUNTING)
            print(_line(count, stage, resident, counted), flush=True)
    return 0


def _line(count: int, stage: int, resident: Sequence[dict], counted: Sequence[dict]) -> str:
    """Returns a row of the table; each figure is the largest of all processes."""
    whole, cells = resident[0]["whole"], [str(count), str(stage)]
    rest = max(each["allocated"] for each in counted)
    cells += [_megabytes(whole), f"{_megabytes(rest)} ({rest / whole:.4f})" if rest else "-"]
    peak = max(each["allocated_peak"] for each in counted)
    cells += [_megabytes(peak) if peak else "-"]
    # Without sharding, every process has all weights all the time.
    cells += [_megabytes(resident[0]["bound"]) if stage == 3 else "-"]
    for name in ("rest", "program", "peak"):
        cells.append(_megabytes(max(each[name] for each in resident)))
    cells.append(f"{max(each['seconds'] for each in resident):.2f}")
    return f"| {' | '.join(cells)} |"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def _started(count: int, stage: int, allocator: dict[str, str]) -> list[dict]:
    """Starts `count` processes, and returns the measurements of each."""
    from t2tp.processes.rendezvous import free_port

    own = os.environ | {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTRAOP_THREADS": "1",
        "WORLD_SIZE": str(count),
        "STAGE": str(stage),
        "COORDINATOR": f"localhost:{free_port()}",
        **allocator,
    }
    # RLIMIT_DATA counts the full stack of each thread. A stack gets the size that RLIMIT_STACK has
    # when a process starts.
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, resource.getrlimit(resource.RLIMIT_STACK)[1]))
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
    """Trains, and returns the memory of this process in bytes, and the seconds of a step."""
    if args.gigabytes:
        limit = int(args.gigabytes * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    import numpy as np
    import tensorflow as tf

    import t2tp
    import t2tp.hparams
    import t2tp.models
    from t2tp import optim, registry
    from t2tp.mesh.layout import Layout

    count = int(os.environ["WORLD_SIZE"])
    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.parse(
        f"d_model={args.d_model},d_ff={4 * args.d_model},num_heads={args.d_model // 64},d_kv=64,"
        f"num_hidden_layers={args.layers},max_length={LENGTH},layer_prepostprocess_dropout=0.0,"
        f"optimizer=adam,clip_grad_norm={args.clip_grad_norm},learning_rate_schedule=constant,"
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
    begin = resident("VmRSS")
    program = t2tp.Program(step, dict.fromkeys(FEATURES, feature), layout=layout, cluster=cluster)
    targets = np.random.default_rng(0).integers(1, VOCAB_SIZE, (args.batch, LENGTH), np.int32)
    batch = {
        "targets": targets,
        "targets_segmentation": np.ones_like(targets),
        "targets_position": np.broadcast_to(np.arange(LENGTH, dtype=np.int32), targets.shape),
    }
    device = cluster.devices[cluster.process_id]
    counts = any(name in os.environ for name in COUNTING)
    rest = resident("VmRSS")
    allocated = _counted(device, "current") if counts else 0
    losses, seconds = [], []
    for number in range(STEPS):
        if number == 1:  # The first step has traced the program.
            program_size = resident("VmRSS") - rest
            reset_peak()
            if counts:
                tf.config.experimental.reset_memory_stats(device)
        start = time.perf_counter()
        losses.append(float(program(batch, step=number)["loss"]))
        seconds.append(time.perf_counter() - start)
    if not losses[-1] < losses[0]:
        sys.exit(f"It does not learn: the losses are {losses}.")
    peak = resident("VmHWM")
    weights = {v.spec.name: 4 * v.spec.shape.size for v in program.variables if v.spec.trainable}
    in_a_layer = sum(size for name, size in weights.items() if name.startswith("layer_00/"))
    bound = (1 + args.prefetch) * in_a_layer
    if args.clip_grad_norm:
        bound += sum(weights.values()) // count
    return {
        "whole": sum(4 * v.spec.shape.size for v in program.variables),
        "rest": rest - begin,
        "program": program_size,
        "peak": peak - rest - program_size,
        "allocated": allocated,
        "allocated_peak": _counted(device, "peak") - allocated if counts else 0,
        "bound": bound,
        "seconds": min(seconds),
    }


def _counted(device: str, what: str) -> int:
    """Returns the bytes of TensorFlow's allocator: `current`, or `peak`."""
    import tensorflow as tf

    return tf.config.experimental.get_memory_info(device)[what]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", default="1,2,4,8")
    parser.add_argument("--stages", default="0,3")
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--d_model", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8, help="rows, of all processes")
    parser.add_argument("--prefetch", type=int, default=1)
    parser.add_argument("--clip_grad_norm", type=float, default=1.0)
    parser.add_argument("--gigabytes", type=float, default=0.0, help="that a process may allocate")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
