"""Trains the registered models in real runs, each of minutes to an hour on two cores.

    python benchmarks/learning/run.py reverse addition --mesh_shape="data:2;model:2"

Prints each evaluation, then the figures of each case's held-out splits, compared with results
without a network (`baselines.py`). With `--directory`, the runs are kept, and a stopped run
resumes. docs/learning.md has the results.

A whole sequence counts as accurate if greedy decoding returns it. This is so if each of its tokens
is the most probable one after the correct tokens that precede that token.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from baselines import BASELINES

from t2tp import hparams as _hparams  # noqa: F401  (it registers the sets)
from t2tp import models as _models  # noqa: F401
from t2tp import problems, registry
from t2tp.trainer.cli import console
from t2tp.trainer.eval_config import EvalConfig
from t2tp.trainer.experiment import Experiment
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_spec import RunSpec


@dataclass(frozen=True)
class Case:
    """A training run and its evaluations.

    Attributes:
      model: name of the model.
      problem: name of the problem.
      hparams_set: name of the set.
      changes: changes to the set.
      steps: number of training steps.
      evaluate_every: steps between evaluations; 0: at the end only.
      splits: splits to evaluate on at the end.
      problem_options: options of the problem.
    """

    model: str
    problem: str
    hparams_set: str
    changes: str
    steps: int
    evaluate_every: int = 0
    splits: tuple[str, ...] = ("validation", "test")
    problem_options: str = ""


_MOE = "batch_size=16,max_length=256,learning_rate_constant=0.002,position=rotary"

CASES = {
    "reverse": Case(
        "transformer",
        "algorithmic_reverse_binary40",
        "transformer_tiny",
        "batch_size=64,max_length=48,learning_rate_constant=0.001",
        2000,
        500,
    ),
    "addition": Case(
        "transformer",
        "algorithmic_addition_decimal40",
        "transformer_tiny",
        "batch_size=12,max_length=128,num_hidden_layers=3,learning_rate_constant=0.002,"
        "learning_rate_warmup_steps=500,activation_dtype=bfloat16",
        12000,
        2000,
        problem_options="arrangement=packed",
    ),
    "language_model": Case(
        "transformer_lm",
        "languagemodel_python_stdlib",
        "transformer_lm_plain_tiny",
        "batch_size=8,max_length=256,d_model=256,d_ff=704,num_heads=8,num_hidden_layers=4,"
        "mlp=swiglu,position=rotary,learning_rate_constant=0.0015",
        5500,
        500,
    ),
    "dense": Case(
        "transformer_lm", "languagemodel_python_stdlib", "transformer_lm_plain_tiny", _MOE, 1000
    ),
    "experts": Case(
        "transformer_moe", "languagemodel_python_stdlib", "transformer_moe_tiny", _MOE, 1000
    ),
    "mlp": Case("mlp", "image_digits", "mlp_tiny", "", 600),
    "vit": Case("vit", "image_digits", "vit_tiny", "", 600),
    "mtf_resnet": Case("mtf_resnet", "image_digits", "mtf_resnet_digits", "", 300),
    "mtf_image_transformer": Case(
        "mtf_image_transformer",
        "image_digits_gen",
        "mtf_image_transformer_digits",
        "attention_type=full,d_model=64,d_kv=16,num_hidden_layers=3,learning_rate_constant=0.004",
        300,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--hparams", default="", help="changes, after the case's own")
    parser.add_argument("--mesh_shape", default="", help="as in data:2;model:2")
    parser.add_argument("--steps", type=int, default=0, help="0: the case's")
    parser.add_argument("--directory", default="", help="by default a new one, which is removed")
    parser.add_argument("--data_dir", default="", help="by default in the directory")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    console.use_plain_lines()
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.cases:
            report(name, Path(args.directory or scratch), args)


def report(name: str, directory: Path, args: argparse.Namespace) -> None:
    """Trains a case and prints its results."""
    case = CASES[name]
    steps = args.steps or case.steps
    data_dir = Path(args.data_dir or directory / "data")
    problem = problems.find(case.problem, case.problem_options)
    problem.prepare(data_dir)
    hparams = registry.hparams(case.hparams_set)
    problem.change_hparams(hparams)
    hparams.mesh_shape = args.mesh_shape
    for text in (case.changes, args.hparams):
        hparams.parse(text)
    config = RunConfig(str(directory / name), random_seed=args.seed)
    spec = RunSpec.resolve(
        case.model,
        case.problem,
        hparams,
        config,
        data_dir=data_dir,
        train_steps=steps,
        problem_options=case.problem_options,
    )
    experiments = {
        split: Experiment(replace(spec, evaluation=EvalConfig(-1, case.evaluate_every, split)))
        for split in case.splits
    }
    begin = time.perf_counter()
    figures = {case.splits[0]: experiments[case.splits[0]].train_and_evaluate()}
    minutes = (time.perf_counter() - begin) / 60
    changes = ",".join(filter(None, [case.changes, args.hparams])) or "as it is"
    mesh = args.mesh_shape or "one device"
    print(f"{name}: {case.model} on {case.problem} ({case.hparams_set}, {changes})")
    print(f"  {mesh}, {steps} steps, {minutes:.1f} min")
    figures |= {split: experiments[split].evaluate() for split in case.splits[1:]}
    for split, values in figures.items():
        metrics = ", ".join(f"{metric} {value:.4f}" for metric, value in values.items())
        print(f"  {split}: {metrics}")
        for baseline in BASELINES.get(case.problem, ()):
            print(f"  {split}, {baseline(problem, data_dir, split)}", flush=True)


if __name__ == "__main__":
    main()
