"""TFDS's catalog without the network: its datasets, with examples that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

EXAMPLES = 20


def english(seed: int, number: int) -> str:
    """Words enough for a vocabulary of some hundreds of pieces."""
    random = np.random.default_rng([seed, number])
    return " ".join(
        "".join(random.choice(list("etaoinshrdlu"), random.integers(2, 6))) for _ in range(30)
    )


def example(builder: tfds.core.DatasetBuilder, number: int) -> dict[str, Any]:
    """An example of the dataset as its features say, with words for texts."""
    return made_up(builder.info.features, number)


def made_up(features: tfds.features.FeaturesDict, number: int) -> dict[str, Any]:
    """Values of features, and of those inside them."""
    found: dict[str, Any] = {}
    for seed, (name, feature) in enumerate(features.items()):
        random = np.random.default_rng([seed, number])
        if isinstance(feature, tfds.features.FeaturesDict):
            found[name] = made_up(feature, number)
        elif isinstance(feature, tfds.features.ClassLabel):
            found[name] = int(random.integers(feature.num_classes))
        elif isinstance(feature, tfds.features.Image):
            shape = [size or 40 + 8 * i for i, size in enumerate(feature.shape)]
            found[name] = random.integers(0, 256, shape).astype(np.uint8)
        else:
            found[name] = english(seed, number)
    return found


def encoded(value: Any) -> Any:
    """The value with its texts in bytes, as TFDS gives them."""
    if isinstance(value, dict):
        return {name: encoded(each) for name, each in value.items()}
    return value.encode() if isinstance(value, str) else value


@contextmanager
def mocked_datasets() -> Iterator[None]:
    """Every split of every dataset has 20 examples, which TFDS pretends to have."""

    def source(builder: tfds.core.DatasetBuilder, split: str, **options: Any) -> list:
        return [encoded(example(builder, number)) for number in range(EXAMPLES)]

    with tfds.testing.mock_data(num_examples=EXAMPLES, as_data_source_fn=source):
        yield
