"""Text to text: translation, summaries, or any other task that maps one text to another.

The stored columns are `inputs` and `targets`: token ids that end with EOS.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from t2tp.hparam import HParams
from t2tp.object_store.mirror import pulled
from t2tp.problems.data.batch_stream import ExampleSource, Stream
from t2tp.problems.data.buckets import BucketedStream
from t2tp.problems.data.fields import Field, FieldSource, token_fields, token_specs
from t2tp.problems.data.row_layout import RowTexts, bucketed, one_per_row, pack
from t2tp.problems.data.row_plan import RowPlan
from t2tp.problems.data.sample import Sample, SkippedSampleError, StoredExample, text_of
from t2tp.problems.metrics import TEXT_METRICS
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.text import TextProblem
from t2tp.problems.vocab.vocabulary_file import load_vocabulary

ARRANGEMENTS = ("padded", "packed", "bucketed")


class PairProblem(Problem):
    """Pairs of token sequences, inputs and targets; the tokens need not be text.

    The suffix `_rev` of a problem's name swaps inputs and targets; `_copy` uses the inputs as
    targets. The problem and its suffixed variants share the same data.

    Options:
        arrangement: arrangement of training rows. "padded": one pair per row. "packed": several
            pairs per row, separated by segments. "bucketed": batches of pairs of similar length.
            Other splits are always padded.
    """

    metric_names: tuple[str, ...] = TEXT_METRICS
    features = {**token_specs("inputs"), **token_specs("targets")}
    reading_options = ("arrangement",)
    is_reversed = False
    is_copy = False

    @property
    def name(self) -> str:
        """The registered name with the suffixes."""
        return super().name + "_rev" * self.is_reversed + "_copy" * self.is_copy

    def directory(self, data_dir: AnyPath) -> Path:
        """Returns the directory of the data, shared by all suffixed variants."""
        return pulled(Path(data_dir) / super().name)

    def default_options(self) -> HParams:
        """Declares the options."""
        options = super().default_options()
        options.add("arrangement", "padded", help="of training rows", choices=ARRANGEMENTS)
        return options

    def examples(self, data_dir: AnyPath, split: str, length: int) -> FieldSource:
        """Returns the pairs of a split, one per row; see `Problem.examples`."""
        texts = self._texts(data_dir, split)
        return self._source(texts, one_per_row(texts, length), length)

    def train_examples(self, data_dir: AnyPath, length: int) -> FieldSource:
        """Returns the training rows, padded or packed; raises ValueError if they are bucketed."""
        arrangement, split = self.options.arrangement, self.splits[0]
        if arrangement == "bucketed":
            raise ValueError(
                f"{self.name}: batches of pairs of like length cannot be mixed with others; give "
                "arrangement=padded or arrangement=packed"
            )
        if arrangement == "padded":
            return self.examples(data_dir, split, length)
        texts = self._texts(data_dir, split)
        return self._source(texts, pack(texts, length), length)

    def train_stream(self, data_dir: AnyPath, batch_size: int, length: int, seed: int) -> Stream:
        """Returns the training batches in the option's arrangement."""
        if self.options.arrangement != "bucketed":
            return super().train_stream(data_dir, batch_size, length, seed)
        texts = self._texts(data_dir, self.splits[0])
        buckets: list[tuple[ExampleSource, int]] = [
            (self._source(texts, plan, size), length // size)
            for size, plan in bucketed(texts, length)
        ]
        return BucketedStream(buckets, batch_size, seed)

    @property
    def _stored_names(self) -> dict[str, str]:
        """The stored columns of inputs and targets, swapped or copied by the suffixes."""
        inputs, targets = ("targets", "inputs") if self.is_reversed else ("inputs", "targets")
        return {"inputs": inputs, "targets": inputs if self.is_copy else targets}

    def _texts(self, data_dir: AnyPath, split: str) -> RowTexts:
        """Returns the stored texts that are read."""
        stored = self.stored(data_dir, split)
        columns = {name: stored[name] for name in self._stored_names.values()}
        what, directory = f"{split} of {self.name}", self.index_directory(data_dir)
        return RowTexts(columns, split, what, directory)

    def _source(self, texts: RowTexts, plan: RowPlan, length: int) -> FieldSource:
        fields: dict[str, Field] = {}
        for name, column in self._stored_names.items():
            fields |= token_fields(name, texts.columns[column], plan, length)
        return FieldSource(len(plan), fields)


class Text2TextProblem(TextProblem, PairProblem):
    """Text to text with one vocabulary for both. A sample has "inputs" and "targets"."""

    decode_metric_names: tuple[str, ...] = ("bleu", "chrf")
    token_columns = {"inputs": "inputs", "targets": "targets"}

    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns the encoder of both texts; pairs with an empty side are skipped."""
        vocabulary = load_vocabulary(directory)

        def encode(sample: Sample) -> StoredExample:
            texts = {name: text_of(sample, name) for name in self.token_columns}
            if not all(texts.values()):
                raise SkippedSampleError("a side is empty")
            columns = {
                name: np.array([*vocabulary.encode(text), vocabulary.end_of_document])
                for name, text in texts.items()
            }
            return StoredExample(
                columns, sum(int(vocabulary.byte_lengths[ids].sum()) for ids in columns.values())
            )

        return encode
