"""Handwritten digits: 1,797 images of 8 x 8 pixels with 17 shades, from UCI.

The images come with scikit-learn, so these problems need no download.
"""

from pathlib import Path
from typing import Any

import numpy as np

from t2tp import registry
from t2tp.optional_import import optional_import
from t2tp.problems.data.permutation import permute
from t2tp.problems.data.sample import Samples
from t2tp.problems.images import Image2ClassProblem, ImageGenerationProblem, ImageProblem

_HELD_OUT = {"validation": 250, "test": 250}


class _Digits(ImageProblem):
    """Images of digits."""

    image_shape = (8, 8, 1)
    hparams_changes = {"batch_size": 64}

    def provenance(self, directory: Path, tmp_dir: Path) -> dict[str, Any]:
        """Returns the source of the digits."""
        import sklearn

        return {"dataset": "sklearn.datasets.load_digits", "scikit-learn": sklearn.__version__}


@registry.register_problem
class ImageDigits(_Digits, Image2ClassProblem):
    """Classification of digits: 1,297 training images, 250 each for validation and test."""

    levels = 17
    class_names = tuple("0123456789")

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Returns the images and their digits."""
        images, labels = _digits(split)
        return [
            {"image": image, "label": label}
            for image, label in zip(images, labels.tolist(), strict=True)
        ]


@registry.register_problem
class ImageDigitsGen(_Digits, ImageGenerationProblem):
    """Generation of digits, in 16 shades: shade 16 is stored as 15.

    A pixel is the count of black pixels in a block of 4 x 4 pixels of the scan, 0 to 16.
    `image_digits` keeps all 17 shades.
    """

    levels = 16

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Returns the images."""
        images, _ = _digits(split)
        return [{"image": image} for image in np.minimum(images, self.levels - 1)]

    def provenance(self, directory: Path, tmp_dir: Path) -> dict[str, Any]:
        """Returns the source of the digits, and the change of their shades."""
        return {**super().provenance(directory, tmp_dir), "shades": "16, as 16 counts as 15"}


def _digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images, uint8 [n, 8, 8, 1], and the labels, int64 [n], of a split."""
    advice = "the images of digits come with scikit-learn: pip install -e '.[digits]'"
    with optional_import(advice, ValueError):
        from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    order = permute(np.arange(len(labels)), len(labels), "digits")
    held_out = sum(_HELD_OUT.values())
    validation, test, train = np.split(order, [_HELD_OUT["validation"], held_out])
    numbers = {"train": train, "validation": validation, "test": test}[split]
    return images[numbers].astype(np.uint8).reshape(-1, 8, 8, 1), labels[numbers]
