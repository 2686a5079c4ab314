"""Plants a row in 10^5 examples, trains up to the step that has it, and replays that step.

    TF_ENABLE_ONEDNN_OPTS=0 TF_NUM_INTRAOP_THREADS=1 \\
        python -m benchmarks.planted_rows [--runs=20] [--directory=planted]

A processor with AVX2 and without AVX-512 also needs `ONEDNN_MAX_CPU_ISA=AVX` (docs/exact.md).

Examples are sequences of 15 letters that follow a rule, with 10 % noise; a language model learns
the rule in 50 batches of 500 rows. The planted row is one of

* wrong labels: random letters;
* repeated: one letter 15 times;
* short: a single letter; its gradient is huge because it is not averaged over many targets.

The seed of a run determines the position of the planted row in the epoch. Runs train with
`exact_sums`, alternately on a mesh of 2x2 and in a pipeline; `t2tp_replay` runs on one device.
Prints a line for each run: the rank of the planted row among the 500 rows of its step by gradient
norm and by loss, and whether the step's loss and gradient norm in the replay equal those of the
run, bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import itertools
import json
import os
import random
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from t2tp import registry
from t2tp.problems.algorithmic import AlgorithmicProblem
from t2tp.problems.data.sample import GeneratedSamples, Sample, Samples
from tests.trainer.command import call

ROWS, LENGTH, BATCH, FIRST_STEP = 100_000, 16, 500, 50
PLANTED = 54_321  # Number of the planted sample, before samples are shuffled.
HPARAMS = "exact_sums=8,num_hidden_layers=2,d_model=32,d_ff=32,num_heads=2,d_kv=16"
HPARAMS += f",max_length={LENGTH},batch_size={BATCH},batch_size_unit=sequences_per_batch"
HPARAMS += ",learning_rate_constant=0.01,learning_rate_warmup_steps=10"
MESHES = {
    "data:2;model:2": "layout=batch:data;heads:model;d_ff:model",
    "stage:2;data:2": "layout=batch:data;layers:stage,microbatches=2",
}


class PlantedProblem(AlgorithmicProblem):
    """Sequences in which a letter determines the next one, with noise."""

    base = 30
    sample_counts = {"train": ROWS, "validation": 10, "test": 10}

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Returns the samples."""
        return GeneratedSamples(self.sample_counts[split], functools.partial(self.sample, split))

    def sample(self, split: str, number: int) -> Sample:
        """Returns a sample; its number determines it."""
        generator = random.Random(f"{split} {number}")
        is_planted = (split, number) == ("train", PLANTED)
        return {"inputs": [0], "targets": (self.planted if is_planted else self.row)(generator)}

    def row(self, generator: random.Random) -> list[int]:
        """Samples a row that follows the rule, with noise."""
        row = [generator.randrange(self.base)]
        while len(row) < LENGTH - 1:
            is_noise = generator.random() < 0.1
            row.append(generator.randrange(self.base) if is_noise else (7 * row[-1] + 3) % 30)
        return row

    def planted(self, generator: random.Random) -> list[int]:
        """Samples the planted row."""
        return [generator.randrange(self.base) for _ in range(LENGTH - 1)]

    def targets(self, inputs: list[int]) -> list[int]:
        """Is not used."""
        raise NotImplementedError


@registry.register_problem
class WrongLabels(PlantedProblem):
    """The planted row is random."""


@registry.register_problem
class Repeated(PlantedProblem):
    """The planted row repeats a letter."""

    def planted(self, generator: random.Random) -> list[int]:
        """Samples the planted row."""
        return [generator.randrange(self.base)] * (LENGTH - 1)


@registry.register_problem
class Short(PlantedProblem):
    """The planted row has one letter."""

    def planted(self, generator: random.Random) -> list[int]:
        """Samples the planted row."""
        return [generator.randrange(self.base)]


def run(number: int, directory: Path) -> bool:
    """Trains and replays; prints a line, and returns whether the planted row has the first rank."""
    began = time.perf_counter()
    problem = ("wrong_labels", "repeated", "short")[number % 3]
    mesh = list(MESHES)[number // 3 % 2]
    where = {"data_dir": directory / "data", "output_dir": directory / f"run-{number}"}
    made = registry.problem(problem)()
    made.prepare(where["data_dir"])
    stream = made.stream(where["data_dir"], "train", BATCH, LENGTH, seed=number)
    letters = made.sample(made.splits[0], PLANTED)["targets"]
    tokens = np.zeros(LENGTH, np.int32)  # 0: padding, 1: end, 2: letter 0.
    tokens[: len(letters) + 1] = [*(letter + 2 for letter in letters), 1]
    is_planted = (np.all(stream[n]["targets"] == tokens, 1) for n in itertools.count(FIRST_STEP))
    step, row = next((n, np.argmax(x)) for n, x in enumerate(is_planted, FIRST_STEP + 1) if any(x))
    flags = {
        "problem": problem,
        "model": "transformer_lm",
        "hparams_set": "transformer_lm_plain_tiny",
        "hparams": f"{HPARAMS},{MESHES[mesh]}",
        "mesh_shape": mesh,
        "schedule": "train",
        "random_seed": number,
        "train_steps": step,
        "save_checkpoints_steps": 25,
        "log_step_count_steps": 1,
    }
    out, summary = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(summary):
        failed = call("t2tp_trainer", **where, **flags)
        with contextlib.redirect_stdout(out):
            failed = failed or call("t2tp_replay", **where, step=step)
    if failed:
        raise SystemExit(summary.getvalue())
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    place = [x["row"] for x in found].index(row)
    by_loss = sorted(found, key=lambda x: -x["loss"]).index(found[place])
    same = "equal" if "equal, bit for bit" in summary.getvalue() else "NOT equal"
    print(
        f"run {number}: {problem}, {mesh}, step {step}: place {place + 1} by norm,"
        f" {by_loss + 1} by loss; norm {found[place]['gradient_norm']:.3g}, largest of the others"
        f" {found[place == 0]['gradient_norm']:.3g}; {same}"
        f" ({time.perf_counter() - began:.0f} s)",
        flush=True,
    )
    return place == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--directory", type=Path, default=Path("planted"))
    args = parser.parse_args()
    first = sum(run(number, args.directory) for number in range(args.runs))
    print(f"the planted row came first in {first} of {args.runs} runs")


if __name__ == "__main__":
    main()
