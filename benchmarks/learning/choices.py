"""Measures the effect of each choice in `transformer_lm_base`, at two widths and two depths.

    python benchmarks/learning/choices.py --data_dir=data [--runs="width 64;width 128"] [CHOICE ...]

Each run changes one choice and keeps all others, on one thread. Two of the set's own choices, gated
networks and the shortcut of the embeddings, are off in the runs that do not name them. The bits per
byte of validation text are stored in choices.json at once, and a stored run is not repeated. At the
end, prints the table of docs/learning.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import tensorflow as tf

from t2tp import hparams as _hparams  # noqa: F401  (it registers the sets)
from t2tp import models as _models  # noqa: F401
from t2tp import problems, registry
from t2tp.atomic_file import write_text
from t2tp.problems.data.packing import FEATURES, PREVIOUS
from t2tp.trainer.cli import console
from t2tp.trainer.eval_config import EvalConfig
from t2tp.trainer.experiment import Experiment
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_spec import RunSpec

STORED = Path(__file__).resolve().parent / "choices.json"
VOCABULARY = 2048
STEPS = 640
# Number of batches of the validation text to evaluate.
EVALUATED = 40
# A column of the table -> sizes, and the hidden size of a gated network with as many parameters.
TWO_OFF = "mlp=relu,embedding_shortcut=false"
NARROW = f"{TWO_OFF},d_model=64,d_ff=256,num_heads=2"
RUNS = {
    "width 64": (NARROW, 172),
    "width 128": (f"{TWO_OFF},d_ff=512", 340),
    "width 64, 4 layers": (f"{NARROW},num_hidden_layers=4", 172),
}
UNCHANGED, SEEDS = "with plain ReLU", {"another seed": 1, "a third seed": 2}
NO_PREVIOUS, PLAIN = "no token before a window", "none of these choices"
CHOICES = {
    UNCHANGED: "",
    **dict.fromkeys(SEEDS, ""),
    "optimizer=adam": "optimizer=adam,learning_rate_constant=0.004",
    "embedding_norm=false": "embedding_norm=false",
    "qk_norm=none": "qk_norm=none",
    "initializer=fan_in": "initializer=fan_in",
    "fan_in, no embedding norm": "initializer=fan_in,embedding_norm=false",
    "position=learned": "position=learned",
    "mlp=swiglu": "mlp=swiglu,d_ff={gated}",
    "embedding_shortcut=true": "embedding_shortcut=true",
    "mlp=swiglu, embedding_shortcut=true": "mlp=swiglu,d_ff={gated},embedding_shortcut=true",
    "cosine decay": "learning_rate_schedule=constant*linear_warmup*cosine_decay",
    "optimizer_muon_relative_rate=1": "optimizer_muon_relative_rate=1,learning_rate_constant=0.006",
    "tie_embeddings=false": "tie_embeddings=false",
    "logits_soft_cap=15": "logits_soft_cap=15.0",
    "weight_decay=0": "weight_decay=0.0",
    "token_shift=false": "token_shift=false",
    NO_PREVIOUS: "",
    PLAIN: "",
}


def bits_per_byte(choice: str, run: str, data_dir: Path) -> float:
    """Trains without a choice, and returns the bits per byte of the validation text."""
    sizes, gated = RUNS[run]
    feature = FEATURES.pop(PREVIOUS)
    if choice not in (NO_PREVIOUS, PLAIN):
        FEATURES[PREVIOUS] = feature
    problem = problems.find("languagemodel_python_stdlib", f"vocab_size={VOCABULARY}")
    problem.prepare(data_dir)
    hparams_set = "transformer_lm_plain_tiny" if choice == PLAIN else "transformer_lm_tiny"
    hparams = registry.hparams(hparams_set)
    hparams.parse(sizes)
    hparams.parse(CHOICES[choice].format(gated=gated))
    with tempfile.TemporaryDirectory() as directory:
        spec = RunSpec.resolve(
            "transformer_lm",
            problem.name,
            hparams,
            RunConfig(directory, random_seed=SEEDS.get(choice, 0)),
            data_dir=data_dir,
            train_steps=STEPS,
            problem_options=f"vocab_size={VOCABULARY}",
            evaluation=EvalConfig(local_eval_frequency=0, eval_steps=EVALUATED),
        )
        experiment = Experiment(spec)
        result = experiment.train_and_evaluate()["bits_per_byte"]
    FEATURES[PREVIOUS] = feature
    return round(result, 4)


def table(stored: dict[str, dict[str, float]]) -> str:
    """Returns a table: bits per byte without each choice, and the difference to all choices."""
    whole = stored[UNCHANGED]
    lines = [f"| one choice changed | {' | '.join(whole)} |", "| -- |" + " -- |" * len(whole)]
    for choice, results in stored.items():
        cells = []
        for run, reference in whole.items():
            more = f" ({results[run] - reference:+.3f})" if run in results else ""
            cells.append(f"{results[run]:.3f}{more}" if more else "")
        lines.append(f"| {choice} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("choices", nargs="*", help="by default all")
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--runs", default=";".join(RUNS), help="columns of the table")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    console.use_plain_lines()
    stored = json.loads(STORED.read_text("utf-8")) if STORED.exists() else {}
    for run in args.runs.split(";"):
        for choice in args.choices or CHOICES:
            if run not in stored.setdefault(choice, {}):
                stored[choice][run] = bits_per_byte(choice, run, args.data_dir)
                write_text(STORED, json.dumps(stored, indent=1) + "\n")
    print(table(stored))


if __name__ == "__main__":
    main()
