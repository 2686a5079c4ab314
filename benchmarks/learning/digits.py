"""What models of pictures learn of scikit-learn's digits: 8 x 8 pixels, 1,297 to learn from.

    python benchmarks/learning/digits.py vit mtf_resnet mlp mtf_image_transformer

Prints the figures of the two held-out splits, 250 pictures each, and for pictures that are made
those of two models without neighbours: every value equally likely, and each pixel by itself.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path

import numpy as np

from t2tp import hparams as _hparams  # noqa: F401  (it registers the sets)
from t2tp import models as _models  # noqa: F401
from t2tp import registry
from t2tp.problems.image_digits import ImageDigitsGen
from t2tp.trainer.experiment import Experiment
from t2tp.trainer.run_config import RunConfig

# model -> problem, set, changes, steps
CASES = {
    "mlp": ("image_digits", "mlp_tiny", "", 600),
    "vit": ("image_digits", "vit_tiny", "", 600),
    "mtf_resnet": ("image_digits", "mtf_resnet_single", "", 300),
    "mtf_image_transformer": (
        "image_digits_gen",
        "mtf_image_transformer_single",
        "attention_type=full,d_model=64,d_kv=16,num_hidden_layers=3,learning_rate_constant=0.004",
        300,
    ),
}
SPLITS = ("validation", "test")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=CASES)
    parser.add_argument("--hparams", default="", help="changes, after the case's own")
    parser.add_argument("--mesh_shape", default="", help="as in data:2;model:2")
    parser.add_argument("--steps", type=int, default=0, help="0: the case's")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            report(model, Path(folder), args)


def report(model: str, folder: Path, args: argparse.Namespace) -> None:
    problem, hparams_set, changes, steps = CASES[model]
    steps = args.steps or steps
    registry.problem(problem)().prepare(folder / "data")
    hparams = registry.hparams(hparams_set)
    for name, value in registry.problem(problem).hparams_changes.items():
        hparams.set(name, value)
    hparams.mesh_shape = args.mesh_shape
    for text in (changes, args.hparams):
        hparams.parse(text)
    config = RunConfig.of(hparams, output_dir=str(folder / model), random_seed=args.seed)
    begin = time.perf_counter()
    figures = {}
    for split in SPLITS:
        experiment = Experiment(
            model,
            problem,
            hparams,
            config,
            data_dir=folder / "data",
            train_steps=steps,
            eval_split=split,
        )
        if split == SPLITS[0]:
            experiment.train()
            seconds = time.perf_counter() - begin
        figures[split] = experiment.evaluate()
    print(f"{model} ({hparams_set}, {changes or 'as it is'}), {steps} steps, {seconds:.0f} s")
    for split, values in figures.items():
        print(f"  {split}: {', '.join(f'{name} {value:.4f}' for name, value in values.items())}")
    if problem == "image_digits_gen":
        print(f"  every value equally likely: bits_per_dim {math.log2(ImageDigitsGen.levels):.4f}")
        for split in SPLITS:
            bits = independent_bits(images("train"), images(split))
            print(f"  each pixel by itself, {split}: bits_per_dim {bits:.4f}")


def images(split: str) -> np.ndarray:
    """[picture, pixel]."""
    samples = ImageDigitsGen().samples(split, Path(), Path())
    return np.stack([np.ravel(sample["image"]) for sample in samples])


def independent_bits(train: np.ndarray, held_out: np.ndarray) -> float:
    """Of a model that counts how often each pixel has each value, once more than it does."""
    levels = ImageDigitsGen.levels
    counts = 1.0 + (train[:, :, None] == np.arange(levels)).sum(0)
    probabilities = counts / counts.sum(-1, keepdims=True)
    pixel = np.arange(train.shape[1])
    return float(-np.log2(probabilities[pixel, held_out]).mean())


if __name__ == "__main__":
    main()
