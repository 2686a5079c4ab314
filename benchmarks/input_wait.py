"""How long the devices wait for data while the demo's model trains.

    python benchmarks/input_wait.py DATA_DIR [STEPS]

`transformer_lm_tiny` on `languagemodel_python_stdlib`, mesh data:2;model:2, batches read and placed
in the background as the trainer does it. The figure is the time that the loop stands still before a
step, as a share of all steps' time.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import t2tp.hparams
import t2tp.models
from t2tp import mtf, optim, problems, registry
from t2tp.trainer.inputs.prefetch import Prefetcher

WARM_UP = 5


def main(data_dir: str, steps: int = 100) -> None:
    hparams = registry.hparams("transformer_lm_tiny")
    problem = problems.find("languagemodel_python_stdlib")
    model = registry.model("transformer_lm")(hparams, problem.vocab_sizes(data_dir))
    batch_size, length = hparams.batch_size, hparams.max_length
    stream = problem.stream(data_dir, "train", batch_size=batch_size, length=length, seed=0)
    shape = mtf.convert_to_shape(f"batch:{batch_size};length:{length}")
    features = {
        name: t2tp.Feature(shape, spec.dtype)
        for name, spec in problem.features(batch_size, length).items()
    }

    def step_fn(mesh, inputs):
        loss = model.loss(mesh, inputs, training=True).loss
        optim.apply_gradients(loss, mesh, hparams, steps)
        return {"loss": loss}

    program = t2tp.Program(step_fn, features, mesh_shape="data:2;model:2", layout=hparams.layout)
    program.trace()
    waited = 0.0
    with Prefetcher(lambda step: program.place(stream[step]), range(WARM_UP + steps)) as placed:
        batches = iter(placed)
        for step in range(WARM_UP + steps):
            if step == WARM_UP:
                waited, began = 0.0, time.perf_counter()
            requested_at = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - requested_at
            float(program(batch, step=step)["loss"])
    total = time.perf_counter() - began
    print(f"{1e3 * total / steps:.0f} ms a step, {waited / total:.2%} of it waiting for data")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:]))
