"""Measures memory and processor time of a training step that computes its loss in chunks.

    python benchmarks/chunked_loss.py [--teacher] [--vocab=131072] [--tokens=4096] [--turns=3]

Trains a language model of two layers (d_model 256) with `loss_chunk=0`, which computes the loss in
chunks, and with `loss_chunk=-1`, which computes all logits at once. With `--teacher`, the model
learns from another model of the same size. Prints two figures for each value of `loss_chunk`, and
stores them in chunked_loss.json:

- the peak memory of a step minus the memory between steps, in a process that returns freed blocks
  to the system;
- the median processor time of a step, in another process with TensorFlow's own allocator. The
  processes of the two values run their steps in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from pipeline_memory import GIVES_BACK
from resident_memory import reset_peak, resident

STORED = Path(__file__).resolve().parent / "chunked_loss.json"
LENGTH = 128
CHUNKS = {"chunks": 0, "whole logits": -1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", action="store_true", help="measure distillation")
    parser.add_argument("--vocab", type=int, default=131072)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--chunk", type=int, help="work as the process that trains with this")
    args = parser.parse_args()
    if args.chunk is not None:
        return _work(args)
    peaks, seconds, losses = [], [[], []], [0.0, 0.0]
    for chunk in CHUNKS.values():
        with _start(args, chunk, **GIVES_BACK) as worker:
            _step(worker)
            peaks.append(_step(worker)[0] / 1e6)
    with _start(args, 0) as first, _start(args, -1) as second:
        for turn in range(args.turns + 1):
            for each, worker in enumerate((first, second)):
                _, taken, losses[each] = _step(worker)
                seconds[each] += [taken] * (turn > 0)
    times = [statistics.median(each) for each in seconds]
    print("| loss | peak of a step, MB | processor time, s |\n| -- | -- | -- |")
    for name, peak, taken in zip(CHUNKS, peaks, times, strict=True):
        print(f"| {name} | {peak:.0f} | {taken:.2f} |")
    ratios = {"peak": peaks[0] / peaks[1], "processor time": times[0] / times[1]}
    print(f"| ratio | {ratios['peak']:.2f} | {ratios['processor time']:.2f} |")
    print(f"losses differ by {abs(losses[0] / losses[1] - 1):.1e}")
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    measured = {
        name: {"peak, MB": round(peak), "processor time, s": round(taken, 2)}
        for name, peak, taken in zip(CHUNKS, peaks, times, strict=True)
    }
    sizes = {"vocab": args.vocab, "tokens": args.tokens}
    rounded = {name: round(ratio, 2) for name, ratio in ratios.items()}
    stored["with a teacher" if args.teacher else "plain"] = {**sizes, **measured, "ratios": rounded}
    STORED.write_text(json.dumps(stored, indent=1) + "\n")


def _start(args: argparse.Namespace, chunk: int, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, f"--vocab={args.vocab}", f"--tokens={args.tokens}"]
    return subprocess.Popen(
        [*command, f"--chunk={chunk}", *["--teacher"] * args.teacher],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _step(worker: subprocess.Popen[str]) -> list[float]:
    """Lets a process train a step; returns the numbers that it prints."""
    print(file=worker.stdin, flush=True)
    return [float(number) for number in worker.stdout.readline().split()]


def _work(args: argparse.Namespace) -> None:
    """Trains a step for each line of standard input; prints its peak, seconds and loss."""
    import numpy as np
    import tensorflow as tf

    import t2tp
    import t2tp.hparams
    import t2tp.models
    from t2tp import registry
    from t2tp.optim import train_step

    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.parse(
        f"d_model=256,d_ff=1024,num_heads=8,d_kv=32,num_hidden_layers=2,max_length={LENGTH}"
        f",loss_chunk={args.chunk}"
    )
    model = registry.model("transformer_lm")(hparams, {"targets": args.vocab})
    if args.teacher:
        model.teacher = type(model)(hparams, model.vocab_sizes)

    def step(mesh: t2tp.Mesh, features: dict) -> dict:
        done = train_step(lambda x: model.loss(mesh, x, training=True), features, mesh, hparams, 9)
        return {"loss": done.loss}

    shape = [args.tokens // LENGTH, LENGTH]
    batch = {
        "targets": np.random.default_rng(0).integers(1, args.vocab, shape).astype(np.int32),
        "targets_segmentation": np.ones(shape, np.int32),
        "targets_position": np.broadcast_to(np.arange(LENGTH, dtype=np.int32), shape),
    }
    feature = t2tp.Feature(f"batch:{shape[0]};length:{LENGTH}", tf.int32)
    program = t2tp.Program(step, dict.fromkeys(batch, feature))
    placed = program.place(batch)
    for number, _ in enumerate(sys.stdin):
        rest = resident("VmRSS")
        reset_peak()
        begin = time.process_time()
        loss = float(program(placed, step=number)["loss"])
        print(resident("VmHWM") - rest, time.process_time() - begin, loss, flush=True)


if __name__ == "__main__":
    main()
