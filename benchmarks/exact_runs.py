"""Trains models with `exact_sums` on many meshes, and compares their checkpoints with one device's.

    TF_ENABLE_ONEDNN_OPTS=0 TF_NUM_INTRAOP_THREADS=1 \\
        python -m benchmarks.exact_runs lm [--steps=100] [--meshes=0,3,7] [--directory=runs]

A processor with AVX2 and without AVX-512 also needs `ONEDNN_MAX_CPU_ISA=AVX` (docs/exact.md).

The model and its random batches are those of `tests/lowering/test_exact_sums.py`, with two layers.
For each mesh, prints how many variables (weights and slots) differ and the first of them, or why
the mesh was refused. Mesh 0 is one device: it must be trained first, by one process, in the same
directory. `t2tp_launch -n 2 --devices_per_process=2 python -m benchmarks.exact_runs lm
--meshes=5,6` trains on meshes of four devices in two processes.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import t2tp
from t2tp.checkpoint import Checkpoint
from t2tp.checkpoint.inspection import differences
from t2tp.mesh.layout import Layout
from tests.lowering.test_exact_sums import FAMILIES, TENSOR, batch_of, program_of

# Wide enough that each slice of a weight has a multiple of 16 elements.
TEXT = {"num_hidden_layers": 2, "max_length": 32, "d_kv": 64}
SIZES = dict.fromkeys(FAMILIES, TEXT) | {
    "encdec": {**TEXT, "relative_buckets": 128},
    "vit": {"num_hidden_layers": 2, "patch_size": 1, "d_model": 128, "d_kv": 64},
    "resnet": {"filter_sizes": [128, 128, 128]},
}
EXPERTS = TENSOR.replace("batch:data", "batch:data+expert") + ";experts:expert"
# Mesh shape, and changes of hparams. All give the same result; the last three split experts.
MESHES: list[tuple[str, dict[str, object]]] = [
    ("", {}),
    ("data:2", {"zero_stage": 1}),
    ("model:2", {}),
    ("seq:2", {}),
    ("stage:2", {"microbatches": 4}),
    ("data:2;model:2", {"zero_stage": 2, "microbatches": 2}),
    ("data:4", {"zero_stage": 3}),
    ("data:2;seq:2", {"zero_stage": 3}),
    ("stage:2;data:2", {"zero_stage": 1, "microbatches": 2}),
    ("data:4;model:2", {"zero_stage": 3}),
    ("data:2;model:2;stage:2", {"microbatches": 2}),
    ("data:2;seq:2;model:2", {"zero_stage": 1}),
    ("data:8", {"zero_stage": 2}),
    ("expert:2", {"layout": EXPERTS}),
    ("data:2;expert:2", {"layout": EXPERTS, "microbatches": 2}),
    ("data:2;expert:2;model:2", {"layout": EXPERTS, "zero_stage": 2}),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--meshes", default="0,1,2,3,4,5,6,7,8,9,10,11,12")
    parser.add_argument("--set", action="append", default=[], metavar="HPARAM=VALUE")
    parser.add_argument("--directory", type=Path, default=Path("exact_runs"))
    args = parser.parse_args()
    kept = {"family": args.family, **SIZES[args.family]}
    kept |= {name: int(x) if x.isdigit() else x for name, x in (y.split("=") for y in args.set)}
    directory = args.directory / "-".join([args.family, *args.set])
    chosen = [(number, *MESHES[number]) for number in map(int, args.meshes.split(","))]
    # TensorFlow makes its devices only once, so there must be enough for the largest mesh.
    t2tp.connect(max(Layout(mesh_shape, "").size for _, mesh_shape, _ in chosen))
    for number, mesh_shape, changes in chosen:
        changes = {k: v for k, v in changes.items() if k not in kept}
        began = time.perf_counter()
        try:
            program = program_of(mesh_shape=mesh_shape, **changes, **kept)
            for step in range(args.steps):
                program(batch_of(step, **kept), step)
            processes = program.cluster.num_processes
            saved = t2tp.save_checkpoint(directory / f"{number}-{processes}", program, args.steps)
        except t2tp.LayoutError as error:
            print(f"{args.family}, {mesh_shape}: refused: {error}", flush=True)
            continue
        if program.cluster.is_main_process:
            one = Checkpoint(directory / "0-1" / saved.name)
            found = differences(one, Checkpoint(saved))
            what = f"{len(found)} of {len(one.shapes())} variables differ {found[:3] or ''}"
            seconds = f"{time.perf_counter() - began:.0f} s"
            settings = ", ".join(f"{k}={v}" for k, v in changes.items() if k != "layout")
            print(
                f"{args.family}, {mesh_shape or 'one device'} {settings}, {processes} processes,"
                f" {args.steps} steps: {what} ({seconds})",
                flush=True,
            )


if __name__ == "__main__":
    main()
