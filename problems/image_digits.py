"""Handwritten digits: 1,797 pictures of 8 x 8 pixels with 17 shades, from UCI.

They come with scikit-learn, so these problems need no download.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from t2tp import registry
from t2tp.problems.generation import Samples
from t2tp.problems.images import Image2ClassProblem, ImageGenerationProblem
from t2tp.problems.permutation import permute

_HELD_OUT = {"validation": 250, "test": 250}


@registry.register_problem
class ImageDigits(Image2ClassProblem):
    """Which digit it is: 1,297 pictures to learn from, 250 and 250 held out."""

    image_shape = (8, 8, 1)
    levels = 17
    class_names = tuple("0123456789")
    hparams_changes = {"batch_size": 64}

    def samples(self, split: str, folder: Path, tmp_dir: Path) -> Samples:
        """Returns the pictures and their digits."""
        images, labels = _digits(split)
        return [
            {"image": image, "label": label}
            for image, label in zip(images, labels.tolist(), strict=True)
        ]

    def origin(self, folder: Path, tmp_dir: Path) -> dict[str, Any]:
        """Says whose digits they are."""
        return _origin()


@registry.register_problem
class ImageDigitsGen(ImageGenerationProblem):
    """The pictures themselves, in 16 shades: 16 counts as 15.

    The samples are these pictures, and what is stored gives them back. Shade 16 is that of blocks
    of 4 x 4 pixels of the scan that are black all over; `image_digits` keeps all 17.
    """

    image_shape = (8, 8, 1)
    levels = 16
    hparams_changes = {"batch_size": 64}

    def samples(self, split: str, folder: Path, tmp_dir: Path) -> Samples:
        """Returns the pictures."""
        images, _ = _digits(split)
        return [{"image": image} for image in np.minimum(images, self.levels - 1)]

    def origin(self, folder: Path, tmp_dir: Path) -> dict[str, Any]:
        """Says whose digits they are, and what was made of their shades."""
        return {**_origin(), "shades": "16, as 16 counts as 15"}


def _digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pictures, uint8 [n, 8, 8, 1], and the labels, int64 [n], of a split."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ValueError(
            "the pictures of digits come with scikit-learn: pip install 't2tp[digits]'"
        ) from error
    images, labels = load_digits(return_X_y=True)
    order = permute(np.arange(len(labels)), len(labels), "digits")
    held_out = sum(_HELD_OUT.values())
    validation, test, train = np.split(order, [_HELD_OUT["validation"], held_out])
    numbers = {"train": train, "validation": validation, "test": test}[split]
    return images[numbers].astype(np.uint8).reshape(-1, 8, 8, 1), labels[numbers]


def _origin() -> dict[str, Any]:
    import sklearn

    return {"dataset": "sklearn.datasets.load_digits", "scikit-learn": sklearn.__version__}
