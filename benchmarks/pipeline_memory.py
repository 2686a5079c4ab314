"""Measures the memory of a pipeline's stages, compared with the schedule's table.

    python benchmarks/pipeline_memory.py

Each of four stages is a process. The memory of a step is the process's peak in the step minus its
memory between steps, according to /proc; freed blocks are returned to the system.
"""

from __future__ import annotations

import os
import subprocess
import sys

from resident_memory import reset_peak, resident

STAGES, MICROBATCHES = 4, 16
LENGTH, VOCAB_SIZE, ROWS, LAYERS_PER_STAGE = 256, 64, 4, 2
SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1))
# By default, glibc and oneDNN keep some freed blocks, depending on what runs at the same time.
GIVES_BACK = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
}


def main() -> None:
    if len(sys.argv) > 1:
        _work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        return
    from t2tp.pipeline.schedules import make_schedule
    from t2tp.processes.rendezvous import free_port

    print("| schedule | stage | kept by the table, MB | measured, MB | fraction of gpipe |")
    print("| -- | -- | -- | -- | -- |")
    gpipe: list[int] = []
    for name, chunks in SCHEDULES:
        coordinator = f"localhost:{free_port()}"
        workers = [
            subprocess.Popen(
                [sys.executable, __file__, name, str(chunks), str(rank), coordinator],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=os.environ | GIVES_BACK,
            )
            for rank in range(STAGES)
        ]
        lines = [worker.communicate()[0].split() for worker in workers]
        if any(worker.returncode for worker in workers):
            raise SystemExit(f"{name}: a process failed")
        held = [int(line[0]) for line in lines]
        gpipe = gpipe or held
        forward, backward = ([[int(size)] * chunks] * STAGES for size in lines[0][1:])
        schedule = make_schedule(name, STAGES, MICROBATCHES, chunks)
        kept = schedule.max_kept(forward, backward)
        for stage, (here, table) in enumerate(zip(held, kept, strict=True)):
            share = f"{here / gpipe[stage]:.0%}"
            print(f"| {name} | {stage} | {table / 1e6:.0f} | {here / 1e6:.0f} | {share} |")


def _work(schedule: str, chunks: int, rank: int, coordinator: str) -> None:
    """Trains one of the stages; prints the bytes of a step, and of activations saved by a pass."""
    import numpy as np
    import tensorflow as tf

    import t2tp
    from t2tp import hparams as _sets  # noqa: F401
    from t2tp import models as _models  # noqa: F401
    from t2tp import registry
    from t2tp.mesh.layout import Layout
    from t2tp.mesh.stages import Pipeline
    from t2tp.optim import train_step
    from t2tp.pipeline.loop import PipelineLoop

    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.parse(
        f"d_model=64,d_ff=256,d_kv=16,max_length={LENGTH},optimizer=sgd"
        f",num_hidden_layers={STAGES * LAYERS_PER_STAGE},microbatches={MICROBATCHES}"
    )
    model = registry.model("transformer_lm")(hparams, {"targets": VOCAB_SIZE})

    def step(mesh: t2tp.Mesh, features: dict) -> dict:
        done = train_step(lambda x: model.loss(mesh, x, training=True), features, mesh, hparams, 9)
        return {"loss": done.loss}

    layout = Layout(f"stage:{STAGES}", "layers:stage", None, Pipeline(schedule, chunks))
    cluster = t2tp.connect(STAGES, num_processes=STAGES, process_id=rank, coordinator=coordinator)
    shape = [ROWS * MICROBATCHES, LENGTH]
    feature = t2tp.Feature(f"batch:{shape[0]};length:{LENGTH}", tf.int32)
    batch = {
        "targets": np.random.default_rng(0).integers(1, VOCAB_SIZE, shape).astype(np.int32),
        "targets_segmentation": np.ones(shape, np.int32),
        "targets_position": np.broadcast_to(np.arange(LENGTH, dtype=np.int32), shape),
    }
    features = dict.fromkeys(batch, feature)
    program = t2tp.Program(step, features, layout=layout, cluster=cluster, xla=False)
    (loop,) = (op for op in program.graph()[0].operations if isinstance(op, PipelineLoop))
    pieces = loop.partition.pieces(0, LAYERS_PER_STAGE // chunks)
    placed = program.place(batch)
    for number in range(2):
        float(program(placed, step=number)["loss"])
    rest = resident("VmRSS")
    reset_peak()
    float(program(placed, step=2)["loss"])
    kept = [
        sum(x.shape.size * x.dtype.size for x in tensors)
        for tensors in (pieces.saved_activations, pieces.saved_for_weights)
    ]
    print(resident("VmHWM") - rest, *kept)


if __name__ == "__main__":
    main()
