"""Measures the processor time of a training step with Muon and with Adam.

    python benchmarks/muon_step.py [--mesh_shape="data:2"] [--processes=2] [--turns=9]

Trains the demo's model on one batch, one step with each optimizer in turns. Prints the median
processor seconds of a step, summed over all processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np

from t2tp.processes.rendezvous import free_port

VOCABULARY, BATCH, LENGTH = 2048, 16, 256
SET = f"num_hidden_layers=3,batch_size={BATCH},max_length={LENGTH}"


def seconds(args: argparse.Namespace) -> dict[str, list[float]]:
    """Returns this process's seconds of each step."""
    import tensorflow as tf

    import t2tp
    import t2tp.hparams
    import t2tp.models
    from t2tp import optim, registry
    from t2tp.mesh.layout import Layout

    def program(optimizer: str, cluster: t2tp.Cluster) -> t2tp.Program:
        hparams = registry.hparams("transformer_lm_tiny")
        hparams.parse(f"{SET},optimizer={optimizer},mesh_shape={args.mesh_shape}")
        model = registry.model("transformer_lm")(hparams, {"targets": VOCABULARY})

        def step(mesh, features):
            loss = model.loss(mesh, features, training=True).loss
            return {"loss": loss} | optim.apply_gradients(loss, mesh, hparams, 1000)

        layout = Layout.from_hparams(hparams)
        return t2tp.Program(step, features, layout=layout, cluster=cluster)

    names = ("targets", "targets_segmentation", "targets_position")
    features = {n: t2tp.Feature(f"batch:{BATCH};length:{LENGTH}", tf.int32) for n in names}
    batch = dict.fromkeys(names, np.ones([BATCH, LENGTH], "int32"))
    batch["targets"] = np.random.default_rng(0).integers(1, VOCABULARY, [BATCH, LENGTH], "int32")
    devices = Layout(args.mesh_shape, "").size
    cluster = t2tp.connect(
        devices,
        num_processes=args.processes,
        process_id=args.process_id,
        coordinator=f"localhost:{args.port}",
    )
    programs = {optimizer: program(optimizer, cluster) for optimizer in ("adam", "muon")}
    taken: dict[str, list[float]] = {optimizer: [] for optimizer in programs}
    for turn in range(args.turns + 1):
        for optimizer, each in programs.items():
            began = time.process_time()
            float(each(batch, turn)["loss"])
            taken[optimizer].append(time.process_time() - began)
    return {optimizer: steps[1:] for optimizer, steps in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mesh_shape", default="data:2")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--process_id", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.process_id is not None:
        print(json.dumps(seconds(args)))
        return
    port = free_port()
    commands = [
        [sys.executable, __file__, *sys.argv[1:], f"--process_id={number}", f"--port={port}"]
        for number in range(args.processes)
    ]
    running = [subprocess.Popen(c, stdout=subprocess.PIPE, text=True) for c in commands]
    results = [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]
    medians = {
        optimizer: statistics.median(map(sum, zip(*(r[optimizer] for r in results), strict=True)))
        for optimizer in results[0]
    }
    where = f"{args.mesh_shape or 'one device'}, {args.processes} processes"
    texts = ", ".join(f"{name} {value:.3f} s" for name, value in medians.items())
    print(f"{where}: {texts}, muon / adam {medians['muon'] / medians['adam']:.3f}")


if __name__ == "__main__":
    main()
