"""Compares a student that has a teacher with the same student alone, on the text of `make demo`.

    make demo
    python benchmarks/learning/distillation.py --demo=demo

The teacher is the demo's model, and the student has a quarter of its parameters. Both trainings of
a seed have the same steps. The results are stored in distillation.json at once, and a stored
training is not repeated. Trains on one thread. At the end, prints the table of docs/learning.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import tensorflow as tf

from t2tp import hparams as _hparams  # noqa: F401  (it registers the sets)
from t2tp import models as _models  # noqa: F401
from t2tp import registry
from t2tp.atomic_file import write_text
from t2tp.trainer.cli import console
from t2tp.trainer.eval_config import EvalConfig
from t2tp.trainer.experiment import Experiment
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_spec import RunSpec

STORED = Path(__file__).resolve().parent / "distillation.json"
SIZES = "max_length=256,d_model=64,d_ff=128,num_heads=2,token_shift=false,embedding_shortcut=false"
LEARNS_FROM = ("the text alone", "the text and the teacher")
SEEDS = (0, 1)

# parameters and bits per byte of the validation text
Figures = dict[str, float]


def figures_of(demo: Path, is_taught: bool, seed: int, steps: int) -> Figures:
    """Trains a student, and returns its figures."""
    hparams = registry.hparams("transformer_lm_tiny")
    hparams.parse(SIZES)
    teacher = str(demo / "run") if is_taught else ""
    with tempfile.TemporaryDirectory() as directory:
        spec = RunSpec.resolve(
            "transformer_lm",
            "languagemodel_python_stdlib",
            hparams,
            RunConfig(directory, random_seed=seed, teacher=teacher),
            data_dir=demo / "data",
            train_steps=steps,
            problem_options="vocab_size=2048",
            evaluation=EvalConfig(local_eval_frequency=0),
        )
        experiment = Experiment(spec)
        result = experiment.train_and_evaluate()["bits_per_byte"]
        parameters, _, _ = experiment.estimator.parameter_counts()
    return {"parameters": parameters, "bits_per_byte": round(result, 4)}


def table(stored: dict[str, dict[str, Figures]]) -> str:
    """Returns the table of the stored results."""
    seeds = list(next(iter(stored.values())))
    lines = [
        f"| student learns from | parameters | {' | '.join(seeds)} |",
        "| -- | -- |" + " -- |" * len(seeds),
    ]
    for name, of_seeds in stored.items():
        parameters = of_seeds[seeds[0]]["parameters"]
        cells = " | ".join(f"{each['bits_per_byte']:.3f}" for each in of_seeds.values())
        lines.append(f"| {name} | {parameters:,} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, required=True, help="the directory of `make demo`")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    console.use_plain_lines()
    stored = json.loads(STORED.read_text("utf-8")) if STORED.exists() else {}
    for is_taught, name in enumerate(LEARNS_FROM):
        results = stored.setdefault(name, {})
        for seed in SEEDS:
            if f"seed {seed}" not in results:
                figures = figures_of(args.demo, bool(is_taught), seed, args.steps)
                results[f"seed {seed}"] = figures
                write_text(STORED, json.dumps(stored, indent=1) + "\n")
    print(table(stored))


if __name__ == "__main__":
    main()
