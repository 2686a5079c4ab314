"""Compares a search that gives trials up early with one that trains every point of a grid.

    python benchmarks/tuning.py --out=/tmp/tuning

Both are `t2tp_tune` with real trainings: 24 points, four at a time. The full grid says which point
is the best; ASHA has to find one within 2 % of it in at most 40 % of the training steps. When it is
interrupted, the same command continues it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path

from t2tp import checkpoint
from t2tp.trainer.run_dir.evaluation_record import EvaluationRecord

CLI = [sys.executable, "-m", "t2tp.trainer.cli"]
PROBLEM = "languagemodel_textfiles"
TEXTS = Path(sysconfig.get_path("stdlib"), "asyncio", "*.py")
TRIALS, STEPS, EVERY = 24, 324, 12  # ASHA compares at steps 12, 36, 108 and 324.
OPTIONS = f"files={TEXTS},documents=lines,vocab_size=500"
# What the criterion allows: the loss over that of the best point, and the part of the steps.
WORSE, PART = 1.02, 0.40

RANGES = '''
from t2tp import registry


@registry.register_ranged_hparams
def tuning_benchmark(ranged):
    """24 points, of which few are good."""
    ranged.set_discrete("learning_rate_constant", [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2])
    ranged.set_discrete("num_hidden_layers", [1, 2])
    ranged.set_discrete("layer_prepostprocess_dropout", [0.0, 0.3])
'''


def search(out: Path, name: str, pruner: str) -> tuple[float, int]:
    """Runs a search, or what is left of it.

    Returns:
      The loss of its best point after all steps, and the training steps of all trials.

    Raises:
      subprocess.CalledProcessError: it has failed.
    """
    directory = out / name
    flags = {
        "problem": PROBLEM,
        "problem_options": OPTIONS,
        "model": "transformer_lm",
        "hparams_set": "transformer_lm_tiny",
        "hparams": "batch_size=8,max_length=64,d_model=32,d_ff=64,num_heads=4",
        "data_dir": out / "data",
        "train_steps": STEPS,
        "local_eval_frequency": EVERY,
        "eval_steps": 4,
        "t2t_usr_dir": out / "ranges",
        "random_seed": 1,
    }
    own = ["--hparams_range=tuning_benchmark", "--sampler=grid", f"--trials={TRIALS}"]
    own += ["--parallel_trials=4", f"--pruner={pruner}", f"--output_dir={directory}"]
    trainer = [f"--{flag}={value}" for flag, value in flags.items()]
    subprocess.run([*CLI, "t2tp_tune", *own, "--", *trainer], check=True)
    steps, losses = 0, []
    for trial in sorted(directory.glob("trial-????")):
        saved = checkpoint.last_finished(trial / "checkpoints")
        steps += saved.step if saved else 0
        evaluations = EvaluationRecord(trial / "eval").by_step()
        if STEPS in evaluations:
            losses.append(evaluations[STEPS]["loss"])
    return min(losses), steps


def main() -> int:
    """Runs both searches; returns 0 if the second one is as good as it has to be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="searches there are continued")
    out = parser.parse_args().out.absolute()
    (out / "ranges").mkdir(parents=True, exist_ok=True)
    (out / "ranges" / "__init__.py").write_text(RANGES)
    generate = [*CLI, "t2tp_datagen", f"--problem={PROBLEM}", f"--problem_options={OPTIONS}"]
    subprocess.run([*generate, f"--data_dir={out / 'data'}"], check=True)
    best, all_steps = search(out, "grid", "none")
    found, steps = search(out, "asha", "asha")
    print(f"grid: loss {best:.4f} after {all_steps} steps of {TRIALS} trials")
    print(
        f"ASHA: loss {found:.4f}, {found / best - 1:+.1%}, after {steps} steps,"
        f" {steps / all_steps:.0%}"
    )
    return 0 if found <= WORSE * best and steps <= PART * all_steps else 1


if __name__ == "__main__":
    sys.exit(main())
