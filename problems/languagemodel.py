"""Language modelling: predict each token of running text from the earlier tokens.

The only stored column is `targets`: the tokens of the documents, with EOS after each document.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from t2tp.hparam import HParams
from t2tp.problems.data.batch_stream import Batch
from t2tp.problems.data.packing import FEATURES, PackedWindows
from t2tp.problems.data.sample import Sample, SkippedSampleError, StoredExample, text_of
from t2tp.problems.problem import AnyPath
from t2tp.problems.text import TextProblem
from t2tp.problems.vocab.vocabulary_file import load_vocabulary


class LanguageModelProblem(TextProblem):
    """Packed language modelling. A sample has "text"; `PackedWindows` describes the features.

    Options, with the options of `TextProblem`:
        separate_documents: whether tokens attend only to tokens of the same document.
    """

    metric_names = ("loss", "accuracy", "neg_log_perplexity", "perplexity", "bits_per_byte")
    features = FEATURES
    token_columns = {"text": "targets"}
    reading_options = ("separate_documents",)

    def default_options(self) -> HParams:
        """Declares the options."""
        options = super().default_options()
        options.add("separate_documents", True, help="attention stops at the ends of documents")
        return options

    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns the encoder of a document; empty documents are skipped."""
        vocabulary = load_vocabulary(directory)

        def encode(sample: Sample) -> StoredExample:
            text = text_of(sample, "text")
            if not text:
                raise SkippedSampleError("empty")
            parts = [np.array(ids, np.int32) for ids in vocabulary.encode_parts(text)]
            begin = np.array(vocabulary.prefix_tokens, np.int32)
            end = np.array([vocabulary.end_of_document], np.int32)
            ids = np.concatenate([begin, *parts, end])
            return StoredExample({"targets": ids}, len(text.encode("utf-8")))

        return encode

    def examples(self, data_dir: AnyPath, split: str, length: int) -> PackedWindows:
        """Returns the windows of a split; see `Problem.examples`."""
        return PackedWindows(
            self.stored(data_dir, split)["targets"],
            length,
            load_vocabulary(self.directory(data_dir)),
            self.options.separate_documents,
            self.check_prepared(data_dir).splits[split].bytes,
        )

    def counts(self, batch: Batch) -> dict[str, float]:
        """Counts "bytes", the UTF-8 length of the batch's text without EOS."""
        assert isinstance(batch.source, PackedWindows)  # as `examples` made it
        return {"bytes": float(batch.source.count_bytes(batch.examples))}

    def split_text(self, data_dir: AnyPath, split: str) -> bytes:
        """Returns a split's concatenated documents in UTF-8."""
        self.check_split(split)
        vocabulary = self.vocabulary(data_dir)
        column = self.stored(data_dir, split)["targets"]
        return vocabulary.decode_bytes(column.span(0, column.size))
