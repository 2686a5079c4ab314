"""The effect of each choice in `transformer_lm_base`, at two sizes.

    python benchmarks/learning/choices.py --data_dir=data [--steps=300] [--sizes=64] [CHOICE ...]

Each run takes back one choice and leaves the others. Prints bits per byte of the validation text,
and the processor time of the process, data and evaluation included. Each run is a process.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from t2tp import hparams as _hparams  # noqa: F401  (it registers the sets)
from t2tp import models as _models  # noqa: F401
from t2tp import problems, registry
from t2tp.problems.data.packing import FEATURES, PREVIOUS
from t2tp.trainer.cli import console
from t2tp.trainer.experiment import Experiment
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_spec import RunSpec

VOCABULARY = 2048
# Width -> other sizes. Without a gate d_ff is 3 / 2 times as large, for as many parameters.
SIZES = {64: "d_model=64,d_ff=176,num_heads=2,num_hidden_layers=2", 128: "num_hidden_layers=3"}
UNGATED = {64: 264, 128: 528}
NO_PREVIOUS, OTHER_SEED, PLAIN = "no token before a window", "another seed", "none of these choices"
CHOICES = {
    "as it is": "",
    OTHER_SEED: "",
    "optimizer=adam": "optimizer=adam,learning_rate_constant=0.004",
    "embedding_norm=false": "embedding_norm=false",
    "qk_norm=none": "qk_norm=none",
    "initializer=fan_in": "initializer=fan_in",
    "fan_in, no embedding norm": "initializer=fan_in,embedding_norm=false",
    "position=learned": "position=learned",
    "mlp=relu": "mlp=relu,d_ff={ungated}",
    "cosine decay": "learning_rate_schedule=constant*linear_warmup*cosine_decay",
    "optimizer_muon_relative_rate=1": "optimizer_muon_relative_rate=1,learning_rate_constant=0.006",
    "tie_embeddings=false": "tie_embeddings=false",
    NO_PREVIOUS: "",
    PLAIN: "d_ff={ungated}",
}


def train(choice: str, size: int, steps: int, data_dir: Path) -> None:
    """Trains without a choice, and prints a line."""
    if choice in (NO_PREVIOUS, PLAIN):
        FEATURES.pop(PREVIOUS)
    problem = problems.find("languagemodel_python_stdlib", f"vocab_size={VOCABULARY}")
    problem.prepare(data_dir)
    hparams_set = "transformer_lm_plain_tiny" if choice == PLAIN else "transformer_lm_tiny"
    hparams = registry.hparams(hparams_set)
    hparams.parse(SIZES[size])
    hparams.parse(CHOICES[choice].format(ungated=UNGATED[size]))
    with tempfile.TemporaryDirectory() as directory:
        spec = RunSpec.resolve(
            "transformer_lm",
            problem.name,
            hparams,
            RunConfig(directory, random_seed=int(choice == OTHER_SEED)),
            data_dir=data_dir,
            train_steps=steps,
            problem_options=f"vocab_size={VOCABULARY}",
        )
        score = Experiment(spec, local_eval_frequency=0).train_and_evaluate()["bits_per_byte"]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = usage.ru_utime + usage.ru_stime
    print(f"| {choice} | {size} | {score:.3f} | {seconds:.0f} s |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("choices", nargs="*", help="by default all")
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300, help="of 16 windows of 128 tokens")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    args = parser.parse_args()
    sizes, choices = [int(size) for size in args.sizes.split(",")], args.choices or list(CHOICES)
    if len(sizes) == len(choices) == 1:
        console.use_plain_lines()
        train(choices[0], sizes[0], args.steps, args.data_dir)
        return
    print("| choice | width | bits per byte | processor time |\n| -- | -- | -- | -- |", flush=True)
    for size in sizes:
        for choice in choices:
            flags = [f"--data_dir={args.data_dir}", f"--steps={args.steps}", f"--sizes={size}"]
            command = [sys.executable, __file__, choice, *flags]
            lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            print(next(line for line in lines.splitlines() if line.startswith("| ")), flush=True)


if __name__ == "__main__":
    main()
