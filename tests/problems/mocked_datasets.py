"""Mocks TFDS's catalog without the network: its datasets, with generated examples."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import tensorflow_datasets as tfds

EXAMPLES = 20


def english(seed: int, number: int) -> str:
    """Returns enough words for a vocabulary of some hundreds of tokens."""
    random = np.random.default_rng([seed, number])
    return " ".join(
        "".join(random.choice(list("etaoinshrdlu"), random.integers(2, 6))) for _ in range(30)
    )


def example(builder: tfds.core.DatasetBuilder, number: int) -> dict[str, Any]:
    """Returns an example with the dataset's features; its texts are words."""
    return _made_up(builder.info.features, number)


def _made_up(features: tfds.features.FeaturesDict, number: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for seed, (name, feature) in enumerate(features.items()):
        random = np.random.default_rng([seed, number])
        if isinstance(feature, tfds.features.FeaturesDict):
            found[name] = _made_up(feature, number)
        elif isinstance(feature, tfds.features.ClassLabel):
            found[name] = int(random.integers(feature.num_classes))
        elif isinstance(feature, tfds.features.Image):
            shape = [size or 40 + 8 * i for i, size in enumerate(feature.shape)]
            found[name] = random.integers(0, 256, shape).astype(np.uint8)
        else:
            found[name] = english(seed, number)
    return found


def encoded(value: Any) -> Any:
    """Encodes the texts of a value as bytes, as TFDS returns them."""
    if isinstance(value, dict):
        return {name: encoded(each) for name, each in value.items()}
    return value.encode() if isinstance(value, str) else value


@contextmanager
def mocked_datasets() -> Iterator[None]:
    """Mocks every dataset: a split declares 10,000 examples, and every read returns 20."""

    def source(builder: tfds.core.DatasetBuilder, split: str, **options: Any) -> list:
        return [encoded(example(builder, number)) for number in range(EXAMPLES)]

    files = tfds.core.ShardedFileTemplate("data", filetype_suffix="records", dataset_name="mocked")
    splits = [
        tfds.core.SplitInfo(name, [10_000], 0, filename_template=files.replace(split=name))
        for name in ("train", "validation", "test")
    ]
    with (
        mock.patch.object(tfds.core.DatasetInfo, "splits", tfds.core.splits.SplitDict(splits)),
        tfds.testing.mock_data(num_examples=EXAMPLES, as_data_source_fn=source),
    ):
        yield
