"""Trains one model on 18 layouts from the same initial values, and stores their losses.

    python benchmarks/learning/layouts.py DATA_DIR

The model is a `transformer_lm_plain_tiny` with 4 layers on `languagemodel_python_stdlib`, in
float32. The losses are stored in layouts.json, next to this script; a stored layout is not
repeated. At the end, prints the spread of the last losses. `tools/images.py` draws the curves.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(Path(__file__).parents[1]))

from mesh_invariance import loss_curve

import t2tp

STORED = Path(__file__).with_name("layouts.json")
STEPS = 100
MODEL = "num_hidden_layers=4,batch_size=8,max_length=64,learning_rate_warmup_steps=10"
TENSOR = "batch:data;heads:model;d_ff:model;vocab:model"
# Mesh shape -> layout and other hparams.
LAYOUTS = [
    ("data:1", ""),
    ("data:2", ""),
    ("data:4", ""),
    ("data:4", "zero_stage=1"),
    ("data:4", "zero_stage=2"),
    ("data:4", "zero_stage=3"),
    ("data:4", "microbatches=2"),
    ("pod:2;data:2", "layout=batch:pod+data,zero_stage=3,zero_axes=data"),
    ("model:2", f"layout={TENSOR}"),
    ("model:4", f"layout={TENSOR}"),
    ("model:2", f"layout={TENSOR};residual_length:model,sequence_parallel=true"),
    ("seq:4", "layout=length:seq"),
    ("seq:4", "layout=length:seq,attention_method=ring"),
    ("stage:2", "layout=layers:stage,microbatches=4"),
    ("stage:2", "layout=layers:stage,microbatches=4,pipeline_schedule=zero_bubble"),
    ("data:2;model:2", f"layout={TENSOR}"),
    ("data:2;seq:2", f"layout={TENSOR};length:seq,zero_stage=3,zero_axes=data+seq"),
    ("stage:2;data:2", f"layout={TENSOR};layers:stage,microbatches=2,zero_stage=1"),
]


def main(data_dir: str) -> None:
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    t2tp.connect(4)
    for mesh_shape, others in LAYOUTS:
        name = f"{mesh_shape} {others}".rstrip()
        if name not in stored:
            changes = ",".join(filter(None, (MODEL, others)))
            curve = loss_curve(mesh_shape, "float32", changes, data_dir, STEPS)
            stored[name] = [round(float(loss), 6) for loss in curve]
            STORED.write_text(json.dumps(stored, indent=0).replace(",\n", ", ") + "\n")
        print(f"{stored[name][-1]:.6f} {name}", flush=True)
    last = [curve[-1] for curve in stored.values()]
    print(f"losses {min(last)} to {max(last)}: a spread of {max(last) / min(last) - 1:.1e}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
