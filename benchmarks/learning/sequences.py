"""What the encoder-decoder `transformer` learns of algorithms: every symbol of a sequence right.

    python benchmarks/learning/sequences.py reverse [--mesh_shape="data:2;model:2"]

The accuracy of whole sequences is that of greedy decoding: a sequence is right if each symbol is
the most probable one after the right ones before it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from t2tp import hparams as _hparams  # noqa: F401  (it registers the sets)
from t2tp import models as _models  # noqa: F401
from t2tp import problems, registry
from t2tp.trainer.experiment import Experiment
from t2tp.trainer.run_config import RunConfig

# case -> problem, changes to transformer_tiny, steps
CASES = {
    "reverse": (
        "algorithmic_reverse_binary40",
        "batch_size=64,max_length=48,learning_rate_constant=0.001",
        2000,
    ),
    "addition": (
        "algorithmic_addition_decimal40",
        "batch_size=64,max_length=96,learning_rate_constant=0.001,num_hidden_layers=3",
        6000,
    ),
}
HPARAMS_SET = "transformer_tiny"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--hparams", default="", help="changes, after the case's own")
    parser.add_argument("--mesh_shape", default="", help="as in data:2;model:2")
    parser.add_argument("--steps", type=int, default=0, help="0: the case's")
    parser.add_argument("--evaluate_every", type=int, default=500)
    parser.add_argument("--data_dir", default="", help="by default a new folder, which is removed")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    name, changes, steps = CASES[args.case]
    with tempfile.TemporaryDirectory() as folder:
        data_dir = args.data_dir or f"{folder}/data"
        problem = problems.find(name)
        problem.prepare(Path(data_dir))
        hparams = registry.hparams(HPARAMS_SET)
        problem.change_hparams(hparams)
        hparams.mesh_shape = args.mesh_shape
        for text in (changes, args.hparams):
            hparams.parse(text)
        experiment = Experiment(
            "transformer",
            name,
            hparams,
            RunConfig.of(hparams, output_dir=f"{folder}/run", random_seed=args.seed),
            data_dir=data_dir,
            train_steps=args.steps or steps,
            local_eval_frequency=args.evaluate_every,
        )
        begin = time.perf_counter()
        figures = experiment.train_and_evaluate()
        seconds = time.perf_counter() - begin
    said = ", ".join(f"{metric} {value:.4f}" for metric, value in figures.items())
    mesh = args.mesh_shape or "one device"
    print(
        f"{name} ({HPARAMS_SET}, {changes}), {mesh}, {args.steps or steps} steps, {seconds:.0f} s"
    )
    print(f"  validation: {said}")


if __name__ == "__main__":
    main()
