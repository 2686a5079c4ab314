"""Compares training of `transformer_lm_tiny` with the same training in PyTorch, on the demo's text.

    python -m benchmarks.learning.against_torch --data_dir=data [--optimizer=adam] [--steps=1000]
        [--float64]

Both start from the same initial values and read the same batches, each on one thread, with the
schedule of the hparams set. With `--float64`, both compute in float64, so that rounding errors do
not accumulate. Stores in against_torch.json, and prints, the largest difference of the first 20
losses and the bits per byte of 40 batches of the validation text.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf

from t2tp import hparams as _hparams  # noqa: F401  (it registers the sets)
from t2tp import models as _models  # noqa: F401
from t2tp import problems, registry
from t2tp.atomic_file import write_text
from t2tp.layout_check.double_program import DoubleProgram
from t2tp.mesh.layout import Layout
from t2tp.program.program import Program
from t2tp.trainer.inputs.problem_inputs import evaluation_inputs, training_inputs
from t2tp.trainer.model_fn import ModeKeys, model_fn_of
from tests.models import torch_lm

STORED = Path(__file__).resolve().parent / "against_torch.json"
OPTIONS, EVALUATED = "vocab_size=2048,separate_documents=false", 40
CHANGES = {"muon": "", "adam": "optimizer=adam,learning_rate_constant=0.001"}


def tokens_of(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Returns tokens [batch, length + 1]: a window and the token before it."""
    return np.concatenate([batch["targets_previous"][:][:, None], batch["targets"][:, :]], 1)


def bits_per_byte(
    values: dict[str, np.ndarray], batches: Iterable[np.ndarray], size: float
) -> float:
    """Evaluates a model in PyTorch on batches of text, which have `size` bytes."""
    parameters = {name: torch_lm.torch.tensor(value) for name, value in values.items()}
    with torch_lm.torch.no_grad():
        nats = sum(
            float(torch_lm.loss_of(parameters, torch_lm.torch.tensor(each).long()))
            * each[:, 1:].size
            for each in batches
        )
    return nats / math.log(2) / size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--optimizer", default="muon", choices=CHANGES)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--float64", action="store_true")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    torch_lm.torch.set_num_threads(1)
    # Without this, torch's Muon would multiply in bfloat16.
    torch_lm.torch.Tensor.bfloat16 = lambda x: x.clone()
    problem = problems.find("languagemodel_python_stdlib", OPTIONS)
    problem.prepare(args.data_dir)
    hparams = registry.hparams("transformer_lm_tiny")
    problem.change_hparams(hparams, args.data_dir)
    hparams.parse(CHANGES[args.optimizer])
    inputs = training_inputs(problem, args.data_dir, hparams, Layout.from_hparams(hparams), seed=0)
    model = registry.model("transformer_lm")
    model_fn = model_fn_of(model, problem.vocab_sizes(args.data_dir), args.steps)

    def step_fn(mesh, features):
        spec = model_fn(mesh, features, ModeKeys.TRAIN, hparams)
        return {"loss": spec.loss, "rate": spec.scalars["learning_rate"]}

    kind = DoubleProgram if args.float64 else Program
    program = kind(step_fn, inputs.features, xla=False)

    def values_of_t2tp() -> dict[str, np.ndarray]:
        return {
            v.spec.name: program.value_of(v, 0) if args.float64 else v.numpy()
            for v in program.variables
            if v.spec.trainable
        }

    initial = values_of_t2tp()
    batches = [inputs.stream[step] for step in range(args.steps)]
    outputs = [program(batch, step) for step, batch in enumerate(batches)]
    ours = [float(each["loss"]) for each in outputs]
    rates = [float(each["rate"]) for each in outputs]
    theirs, values = torch_lm.trained(
        initial, zip(map(tokens_of, batches), rates, strict=True), args.optimizer
    )
    away = np.abs(np.divide(ours, theirs) - 1)
    figures: dict[str, float] = {"steps": args.steps, "difference": float(f"{away[:20].max():.1e}")}
    held_out = evaluation_inputs(
        problem, args.data_dir, hparams, Layout.from_hparams(hparams), problem.splits[1]
    )
    evaluated = [held_out.stream[index] for index in range(EVALUATED)]
    size = sum(problem.counts(batch)["bytes"] for batch in evaluated)
    rows = [tokens_of(batch) for batch in evaluated]
    for name, each in {"t2tp": values_of_t2tp(), "torch": values}.items():
        figures[name] = round(bits_per_byte(each, rows, size), 4)
    stored = json.loads(STORED.read_text("utf-8")) if STORED.exists() else {}
    run = args.optimizer + (", float64" if args.float64 else "")
    print(f"{run}: {figures}")
    write_text(STORED, json.dumps(stored | {run: figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
