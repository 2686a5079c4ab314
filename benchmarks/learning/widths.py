"""Measures the loss over learning rates at several widths, depths and batch sizes.

    python benchmarks/learning/widths.py --data_dir=data [--models=lm] [--optimizers=adam]
        [--sizes=64,128]

Trains each model for some steps with a constant rate after a warm-up, on the same batches, on one
thread; widths and depths with and without `transfer_from`. Batch sizes are compared on the same
number of tokens, and the rate falls linearly to 0 in the last 40 % of the steps. The search for the
rate begins with a first rate, and tries doubled and halved rates until there are two worse rates on
each side of the best. Each result is stored in widths.json at once, and a stored run is not
repeated. At the end, draws docs/images/widths.png (without batch sizes) and prints the tables of
docs/learning.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from t2tp import hparams as _hparams  # noqa: F401  (it registers the sets)
from t2tp import models as _models  # noqa: F401
from t2tp import problems, registry
from t2tp.atomic_file import write_text
from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout
from t2tp.program.program import Program
from t2tp.trainer.inputs.problem_inputs import training_inputs
from t2tp.trainer.model_fn import ModeKeys, model_fn_of

HERE = Path(__file__).resolve().parent
STORED = HERE / "widths.json"
CHART = HERE.parents[1] / "docs" / "images" / "widths.png"


@dataclass(frozen=True)
class Family:
    """Models of several widths or depths, or a model with several batch sizes.

    Attributes:
      model: name of the model.
      hparams_set: name of the set.
      problem: name of the problem.
      problem_options: options of the problem.
      changes: changes to the set.
      sizes: function that returns further changes, given a width, depth or batch size.
      steps: number of training steps; of the smallest batch size.
      seeds: number of initial values to train from with each rate.
      measure: `width`, `depth` or `batch`.
      smallest: the width or depth of the small model, or the smallest batch size.
    """

    model: str
    hparams_set: str
    problem: str
    problem_options: str
    changes: str
    sizes: Callable[[int], str]
    steps: int
    seeds: int = 1
    measure: str = "width"
    smallest: int = 64

    def steps_of(self, size: int) -> int:
        return self.steps * self.smallest // size if self.measure == "batch" else self.steps


def _transformer(width: int) -> str:
    return f"d_model={width},d_ff={4 * width},num_heads={width // 32},d_kv=32"


def _experts(width: int) -> str:
    return f"d_model={width},d_ff={2 * width},num_heads={width // 32},d_kv=32"


def _gated(width: int) -> str:
    return f"d_model={width},d_ff={11 * width // 4},num_heads={width // 32},d_kv=32"


def _deep(depth: int) -> str:
    return f"num_hidden_layers={depth}"


def _batch(rows: int) -> str:
    return f"{_gated(64)},batch_size={rows}"


WINDOWS = "batch_size=8,max_length=64,embedding_shortcut=false"
TEXT = ("languagemodel_python_stdlib_bytes", "", WINDOWS)
UNSHIFTED = (*TEXT[:2], f"{TEXT[2]},token_shift=false")
# Embeddings with a standard deviation of 1, not tied to the logits, as in the paper.
UNTIED = (*TEXT[:2], f"{TEXT[2]},initializer_stddev=1,tie_embeddings=false", _transformer, 120)
# Initial logits must be small. If they are large, the best rate of the narrow model is the rate
# that corrects them fastest. With only four experts, one core can train five widths and 3 seeds.
SMALL_LOGITS = "tie_embeddings=false,embedding_norm=true,num_experts=4"
EXPERTS = (*TEXT[:2], f"{TEXT[2]},{SMALL_LOGITS}", _experts, 120)
FAN_IN = (*TEXT[:2], f"{UNSHIFTED[2]},initializer=fan_in,initializer_stddev=0.1")
FAMILIES = {
    "untied": Family("transformer_lm", "transformer_lm_plain_tiny", *UNTIED),
    "lm": Family("transformer_lm", "transformer_lm_tiny", *UNSHIFTED, _gated, 120),
    "lm_fan_in": Family("transformer_lm", "transformer_lm_tiny", *FAN_IN, _gated, 120),
    "deep": Family(
        "transformer_lm",
        "transformer_lm_tiny",
        *TEXT,
        _deep,
        120,
        seeds=3,
        measure="depth",
        smallest=2,
    ),
    "tokens_250k": Family(
        "transformer_lm", "transformer_lm_tiny", *TEXT, _batch, 960, measure="batch", smallest=4
    ),
    "tokens_1m": Family(
        "transformer_lm", "transformer_lm_tiny", *TEXT, _batch, 3840, measure="batch", smallest=4
    ),
    # Several rates have almost the same loss: with one seed, the best rate would be random.
    "experts": Family("transformer_moe", "transformer_moe_tiny", *EXPERTS, seeds=3),
    "resnet": Family(
        "mtf_resnet",
        "mtf_resnet_digits",
        "image_digits",
        "",
        "",
        lambda width: f"filter_sizes=[{width // 4},{width // 4},{width // 2}]",
        60,
    ),
}
# Exponents of 2 of the first rate to try.
FIRST = {"adam": -7, "muon": -5}
RATE: tf.Variable
MEASURES = ("width", "depth", "batch")


def tried(step: tf.Tensor, hparams: HParams, train_steps: int) -> tf.Tensor | float:
    """Returns the rate to try; it is a variable, because the program is traced only once."""
    return RATE.read_value() if tf.inside_function() else 1.0


def small_model(name: str) -> Callable[[], HParams]:
    """Returns a function that makes the hparams set that `transfer_from` names."""

    def small() -> HParams:
        return hparams_of(FAMILIES[name], FAMILIES[name].smallest, "adam", "")

    return small


def hparams_of(family: Family, size: int, optimizer: str, transfer_from: str) -> HParams:
    hparams = registry.hparams(family.hparams_set)
    hparams.parse(family.changes)
    hparams.parse(family.sizes(size))
    warmup, decay = 20, ""
    if family.measure == "batch":
        warmup, decay = family.steps_of(size) // 8, "*linear_decay"
    hparams.parse(f"learning_rate_schedule=tried*linear_warmup{decay}")
    hparams.parse(f"learning_rate_warmup_steps={warmup}")
    hparams.parse(f"weight_decay=0,optimizer={optimizer},transfer_from={transfer_from}")
    return hparams


class Trained:
    """A model that trains with one rate after another, each time from its initial values."""

    def __init__(self, family: Family, hparams: HParams, size: int, data_dir: Path) -> None:
        steps = family.steps_of(size)
        problem = problems.find(family.problem, family.problem_options)
        problem.prepare(data_dir)
        problem.change_hparams(hparams, data_dir)
        inputs = training_inputs(problem, data_dir, hparams, Layout.from_hparams(hparams), seed=0)
        model = registry.model(family.model)
        model_fn = model_fn_of(model, problem.vocab_sizes(data_dir), steps)

        def step_fn(mesh, features):
            return {"loss": model_fn(mesh, features, ModeKeys.TRAIN, hparams).loss}

        self._initial = []
        for seed in range(family.seeds):
            self._program = Program(step_fn, inputs.features, seed=seed)
            self._initial.append({v.spec.name: v.numpy() for v in self._program.variables})
        self._batches = [inputs.stream[step] for step in range(steps)]

    def loss(self, rate: float) -> float | None:
        """Trains from each seed, and returns the mean loss of the last sixth of the steps.

        Returns:
          The mean over the seeds; None: a run diverged.
        """
        RATE.assign(rate)
        found = []
        for initial in self._initial:
            for variable in self._program.variables:
                variable.assign(initial[variable.spec.name])
            losses: list[float] = []
            for step, batch in enumerate(self._batches):
                losses.append(float(self._program(batch, step)["loss"]))
                if not losses[-1] < 1.5 * losses[0]:
                    return None
            found.append(np.mean(losses[-len(losses) // 6 :]))
        return round(float(np.mean(found)), 4)


def best_exponent(losses: dict[str, float | None]) -> int:
    return int(min(losses, key=lambda e: math.inf if losses[e] is None else losses[e]))


def sweep(key: str, make: Callable[[], Trained], first: int, stored: dict) -> int:
    """Stores the loss for each exponent of the rate, and returns the best exponent."""
    trained = None
    losses = stored.setdefault(key, {})
    while True:
        best = best_exponent(losses) if losses else first
        near = (best + away for away in (0, 1, -1, 2, -2))
        missing = next((e for e in near if str(e) not in losses), None)
        if missing is None:
            return best
        trained = trained or make()
        began = time.process_time()
        losses[str(missing)] = trained.loss(2.0**missing)
        seconds = time.process_time() - began
        print(f"{key}, rate 2^{missing}: {losses[str(missing)]} ({seconds:.0f} s)", flush=True)
        write_text(STORED, json.dumps(stored, indent=1) + "\n")


def _order(key: str) -> tuple[int, str, int, int]:
    model, optimizer, width, *transfer = key.split()
    return list(FAMILIES).index(model), optimizer, len(transfer), int(width)


def runs_by_arm(stored: dict) -> dict[tuple[str, str, str], dict[int, dict[int, float | None]]]:
    """Returns losses by width and exponent, for each model and optimizer.

    The third part of a key is "transfer_from", or "" for the runs without it.
    """
    arms: dict = {}
    for key, losses in sorted(stored.items(), key=lambda run: _order(run[0])):
        model, optimizer, width, *transfer = key.split()
        arm = arms.setdefault((model, optimizer, " ".join(transfer)), {})
        arm[int(width)] = {int(e): losses[e] for e in sorted(losses, key=int)}
    return arms


def table(stored: dict) -> str:
    """Returns tables of widths, depths and batch sizes: the best rate of each, and its loss."""
    measured = {FAMILIES[model].measure for model, _, _ in runs_by_arm(stored)}
    return "\n\n".join(_table(stored, each) for each in MEASURES if each in measured)


def _table(stored: dict, measure: str) -> str:
    arms = {k: v for k, v in runs_by_arm(stored).items() if FAMILIES[k[0]].measure == measure}
    sizes = sorted({size for arm in arms.values() for size in arm})
    lines = [f"| model | optimizer |  | {' | '.join(f'{measure} {s}' for s in sizes)} | moves |"]
    lines.append("| -- |" + " -- |" * (len(sizes) + 3))
    for (model, optimizer, transfer), arm in arms.items():
        best = {size: best_exponent(losses) for size, losses in arm.items()}
        cells = [f"2^{best[s]}: {arm[s][best[s]]:.3f}" if s in best else "" for s in sizes]
        moves = max(best.values()) - min(best.values())
        way = "with" if transfer else "without"
        lines.append(f"| `{model}` | `{optimizer}` | {way} | {' | '.join(cells)} | {moves} |")
    return "\n".join(lines)


def draw(stored: dict) -> None:
    """Draws the losses over rates: a row for each model, without and with `transfer_from`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    arms = runs_by_arm(stored)
    kinds = list(dict.fromkeys(a[:2] for a in arms if FAMILIES[a[0]].measure != "batch"))
    size = (8, 2.6 * len(kinds))
    figure, axes = pyplot.subplots(
        len(kinds), 2, figsize=size, sharex="row", sharey="row", squeeze=False
    )
    for row, (model, optimizer) in zip(axes, kinds, strict=True):
        bests = []
        for panel, transfer in zip(row, ("", "transfer_from"), strict=True):
            arm = arms.get((model, optimizer, transfer), {})
            colors = pyplot.cm.viridis(np.linspace(0, 0.85, len(arm)))
            for color, (width, losses) in zip(colors, arm.items(), strict=True):
                rates = {2.0**e: loss for e, loss in losses.items() if loss is not None}
                panel.plot(rates.keys(), rates.values(), ".-", color=color, label=f"{width}")
                best = best_exponent(losses)
                bests.append(losses[best])
                panel.plot(2.0**best, losses[best], "o", color=color)
            panel.set_xscale("log", base=2)
            way = "with" if transfer else "without"
            panel.set_title(f"{model}, {optimizer}, {way} transfer_from", fontsize=9)
            panel.grid(alpha=0.3)
        row[0].set_ylim(min(bests) - 0.05, max(bests) + 0.3)
        row[0].set_ylabel("loss")
        row[0].legend(title=FAMILIES[model].measure, fontsize=8)
    for panel in axes[-1]:
        panel.set_xlabel("learning rate")
    figure.tight_layout()
    figure.savefig(CHART, dpi=72)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--models", default="lm", help=",".join(FAMILIES))
    parser.add_argument("--optimizers", default="adam", help=",".join(FIRST))
    parser.add_argument("--sizes", default="64,128,256,512,1024", help="widths or depths")
    parser.add_argument("--transfer_only", action="store_true", help="do not train without it")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    global RATE
    tf.config.threading.set_inter_op_parallelism_threads(1)
    RATE = tf.Variable(0.0, trainable=False)
    registry.register_learning_rate_schedule(tried)
    stored = json.loads(STORED.read_text("utf-8")) if STORED.exists() else {}
    for name in args.models.split(","):
        family = FAMILIES[name]
        registry.register_hparams(f"narrow_{name}", model=family.model)(small_model(name))
        for optimizer in args.optimizers.split(","):
            best = {"": FIRST[optimizer]}
            if family.measure != "batch":
                best[f"narrow_{name}"] = FIRST[optimizer]
            for size in map(int, args.sizes.split(",")):
                for transfer_from in [f"narrow_{name}"] if args.transfer_only else best:
                    key = f"{name} {optimizer} {size}{' transfer_from' if transfer_from else ''}"
                    hparams = hparams_of(family, size, optimizer, transfer_from)
                    make = functools.partial(Trained, family, hparams, size, args.data_dir)
                    best[transfer_from] = sweep(key, make, best[transfer_from], stored)
    draw(stored)
    print(table(stored))


if __name__ == "__main__":
    main()
