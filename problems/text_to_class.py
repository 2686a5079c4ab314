"""Text to class: sentiment, topics. The stored columns are `inputs` (tokens) and `targets`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t2tp.problems.data.fields import (
    Field,
    FieldSource,
    NumberField,
    WeightField,
    token_fields,
    token_specs,
)
from t2tp.problems.data.row_layout import RowTexts, one_per_row, truncated
from t2tp.problems.data.row_plan import RowPlan
from t2tp.problems.data.sample import Sample, StoredExample, text_of
from t2tp.problems.problem import AnyPath
from t2tp.problems.text import TextProblem
from t2tp.problems.vocab.vocabulary_file import load_vocabulary


class Text2ClassProblem(TextProblem):
    """Text to class. A sample has "inputs", a text, and "label", the index of its class.

    Batches have inputs with segmentation and position, targets (the class) and weights.
    `class_names` are the names of the classes 0, 1, ...
    """

    metric_names: tuple[str, ...] = ("loss", "accuracy", "neg_log_perplexity")
    token_columns = {"inputs": "inputs"}
    features = token_specs("inputs") | {"targets": NumberField.spec, "weights": WeightField.spec}

    def columns(self, directory: Path) -> dict[str, np.dtype]:
        """Returns the dtypes of the tokens and of the class."""
        return {**super().columns(directory), "targets": np.dtype(np.int32)}

    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns the encoder of a text and its class; unknown classes are an error."""
        vocabulary = load_vocabulary(directory)

        def encode(sample: Sample) -> StoredExample:
            tokens = vocabulary.encode(text_of(sample, "inputs"))
            ids = np.array([*vocabulary.prefix_tokens, *tokens, vocabulary.end_of_document])
            label = np.array([check_label(sample["label"], self.class_names)])
            return StoredExample(
                {"inputs": ids, "targets": label}, int(vocabulary.byte_lengths[ids].sum())
            )

        return encode

    def decoder(self, directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns the decoder of the text and its class."""
        decode = super().decoder(directory)
        return lambda columns: {**decode(columns), "label": int(columns["targets"][0])}

    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the numbers of tokens and of classes."""
        return {**super().vocab_sizes(data_dir), "targets": len(self.class_names)}

    def examples(self, data_dir: AnyPath, split: str, length: int) -> FieldSource:
        """Returns all texts of a split; texts that are too long are truncated."""
        return self._source(data_dir, split, length, truncated)

    def train_examples(self, data_dir: AnyPath, length: int) -> FieldSource:
        """Returns the training texts, without texts that are too long."""
        return self._source(data_dir, self.splits[0], length, one_per_row)

    def _source(
        self,
        data_dir: AnyPath,
        split: str,
        length: int,
        arrange: Callable[[RowTexts, int], RowPlan],
    ) -> FieldSource:
        stored = self.stored(data_dir, split)
        columns, directory = {"inputs": stored["inputs"]}, self.index_directory(data_dir)
        plan = arrange(RowTexts(columns, split, f"{split} of {self.name}", directory), length)
        fields: dict[str, Field] = {
            **token_fields("inputs", stored["inputs"], plan, length),
            "targets": NumberField(stored["targets"], plan),
            "weights": WeightField(),
        }
        return FieldSource(len(plan), fields)


def check_label(label: int, class_names: tuple[str, ...]) -> int:
    """Returns the label; raises ValueError if it is not the index of a class."""
    if not isinstance(label, int | np.integer) or not 0 <= label < len(class_names):
        raise ValueError(
            f"a sample has label {label!r}, and there are {len(class_names)} classes, from 0"
        )
    return int(label)
