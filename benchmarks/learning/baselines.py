"""Results without a network, to compare with trained models."""

from __future__ import annotations

import gzip
import lzma
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from t2tp.problems.problem import Problem


def gzipped(problem: Problem, data_dir: Path, split: str) -> str:
    """Returns the result of compressing the text by gzip."""
    text = problem.split_text(data_dir, split)
    return f"gzip -9: bits_per_byte {8 * len(gzip.compress(text, 9)) / len(text):.4f}"


def xz(problem: Problem, data_dir: Path, split: str) -> str:
    """Returns the result of compressing the text by xz, which finds matches in all of the text."""
    text = problem.split_text(data_dir, split)
    return f"xz -9: bits_per_byte {8 * len(lzma.compress(text, preset=9)) / len(text):.4f}"


def uniform(problem: Problem, data_dir: Path, split: str) -> str:
    """Returns the result if all values of a pixel are equally likely."""
    return f"every value equally likely: bits_per_dim {math.log2(problem.levels):.4f}"


def independent_pixels(problem: Problem, data_dir: Path, split: str) -> str:
    """Returns the result of a model that counts how often each pixel has each value, plus one."""
    train, held_out = _images(problem, "train"), _images(problem, split)
    counts = 1.0 + (train[:, :, None] == np.arange(problem.levels)).sum(0)
    probabilities = counts / counts.sum(-1, keepdims=True)
    bits = -np.log2(probabilities[np.arange(train.shape[1]), held_out]).mean()
    return f"each pixel by itself: bits_per_dim {bits:.4f}"


def _images(problem: Problem, split: str) -> np.ndarray:
    """Returns the images [image, pixel] of a split."""
    samples = problem.samples(split, Path(), Path())
    return np.stack([np.ravel(sample["image"]) for sample in samples])


# problem -> lines to print for each of its splits
BASELINES: dict[str, tuple[Callable[[Problem, Path, str], str], ...]] = {
    "languagemodel_python_stdlib": (gzipped, xz),
    "image_digits_gen": (uniform, independent_pixels),
}
