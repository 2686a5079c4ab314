"""Decodes and scores text with the model of a run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from t2tp import registry
from t2tp.decoding import DecodeOptions, Decoder, Request
from t2tp.decoding.decoder import check_length
from t2tp.decoding.scoring import ScoredRow, Scorer
from t2tp.layers.positions import context_length
from t2tp.models.autoregressive import AutoregressiveModel
from t2tp.problems.codec import Codec
from t2tp.problems.data.batch_stream import ExampleSource
from t2tp.problems.problem import NO_EOS, Problem
from t2tp.trainer.errors import UsageError
from t2tp.trainer.model_fn import ModeKeys

# Max characters of a prompt, about 500,000 tokens.
_MAX_CHARACTERS = 2_000_000

if TYPE_CHECKING:
    from t2tp.trainer.estimator import Estimator
    from t2tp.trainer.run_spec import RunSpec


@dataclass(frozen=True)
class Decoded:
    """A decoded text.

    Attributes:
      text: the text, without the prompt or prefix that it continues.
      score: the value that ranks the texts of a source; see `Hypothesis`.
    """

    text: str
    score: float


# (index of a line, its decoded texts). The best text is the first. For a line that is too long, an
# error replaces the texts.
Result = tuple[int, list[Decoded] | ValueError]


@dataclass(frozen=True)
class DecodedExample:
    """An example of a split with its decoded texts.

    Attributes:
      inputs: the source text.
      targets: the reference text.
      outputs: decoded texts, best first.
    """

    inputs: str
    targets: str
    outputs: list[Decoded]


class RunDecoder:
    """Decodes with the latest checkpoint of a run, or with `config.checkpoint_path`."""

    def __init__(self, spec: RunSpec, estimator: Estimator, options: DecodeOptions) -> None:
        """Creates the decoder without building a program; `with_eos` adds EOS to the options."""
        self._estimator = estimator
        self._spec = spec
        self._max_length = context_length(spec.hparams)
        self._batch_size = options.batch_size
        self._decoder = self.with_options(options)

    def with_options(self, options: DecodeOptions) -> Decoder:
        """Returns a decoder with the same checkpoint and batch size, but other options."""
        options = replace(options, batch_size=self._batch_size)
        options = with_eos(options, self._spec.problem, self._spec.data_dir)
        images = self._spec.problem.generated_images
        return Decoder(
            functools.partial(self._estimator.predict, decode_options=options),
            self._estimator.layout,
            options,
            seed=self._estimator.config.random_seed,
            max_length=images.num_values if images else self._max_length,
        )

    @functools.cached_property
    def _codec(self) -> Codec:
        return codec_for(self._spec.problem, self._spec.data_dir)

    def text(self, text: str, length: int | None = None) -> str:
        """Decodes a source, or continues a prompt; errors as for `texts`.

        `length` is the max number of tokens to generate; default: the length in the options.
        """
        codec = self._codec
        request = replace(request_for(self._spec.problem, codec, text), limit=length)
        [[best, *_]] = self._decoder([request])
        return codec.decode(best.tokens)

    def texts(
        self, lines: Sequence[str], beginnings: Sequence[str] | None = None, path: str = ""
    ) -> Iterator[Result]:
        """Decodes sources, or continues prompts.

        Args:
          lines: the sources or prompts.
          beginnings: prefix of each source's targets; decoded texts do not include the prefix.
          path: file of the lines, for errors.

        Yields:
          The result of each line. Lines that are too long for the model come first. The other
          lines follow when their batches are finished.

        Raises:
          UsageError: the problem has no text.
          ValueError: the codec cannot encode a line, or a language model is given a prefix.
        """
        codec = self._codec
        beginnings = [""] * len(lines) if beginnings is None else beginnings
        requests = []
        for number, each in enumerate(zip(lines, beginnings, strict=True), start=1):
            with naming_line(path, number):
                requests.append(request_for(self._spec.problem, codec, *each))
        yield from self._results(requests, path)

    def replies(self, prompts: Sequence[Sequence[int]], path: str = "") -> Iterator[Result]:
        """Continues prompts of tokens, such as conversations; see `texts`."""
        yield from self._results([Request(prefix=list(prompt)) for prompt in prompts], path)

    def _results(self, requests: Sequence[Request], path: str) -> Iterator[Result]:
        fitting = []
        for number, request in enumerate(requests):
            try:
                with naming_line(path, number + 1):
                    self._decoder.check(request)
            except ValueError as error:
                yield number, error
            else:
                fitting.append(number)
        for index, hypotheses in self._decoder.iterate([requests[n] for n in fitting]):
            texts = [self._codec.decode(each.tokens) for each in hypotheses]
            scores = [each.score for each in hypotheses]
            yield fitting[index], [Decoded(*each) for each in zip(texts, scores, strict=True)]

    def split(self, split: str, count: int) -> list[DecodedExample]:
        """Decodes the first `count` examples of a split (-1: all), in the order of evaluation.

        Raises:
          UsageError: the problem has no inputs to decode from.
          ValueError: there is no such split.
        """
        codec = self._codec
        if not self._spec.problem.reads_inputs:
            raise UsageError(
                f"{self._spec.problem.name} has no inputs to decode from: give prompts, with"
                " --decode_from_file or --decode_interactive"
            )
        self._spec.problem.check_split(split)
        source = self._spec.problem.examples(self._spec.data_dir, split, self._max_length)
        rows = np.arange(len(source) if count < 0 else min(count, len(source)))
        inputs, targets = (tokens_of(source, name, rows) for name in ("inputs", "targets"))
        decoded = self._decoder([Request(inputs=row) for row in inputs])
        return [
            DecodedExample(
                codec.decode(source_row),
                codec.decode(target_row),
                [Decoded(codec.decode(each.tokens), each.score) for each in hypotheses],
            )
            for source_row, target_row, hypotheses in zip(inputs, targets, decoded, strict=True)
        ]

    def images(self, count: int) -> np.ndarray:
        """Generates images, uint8 [count, height, width, channels]; see `GeneratedImages`.

        Raises:
          UsageError: the problem does not generate images.
        """
        images = self._spec.problem.generated_images
        if images is None:
            raise UsageError(f"{self._spec.problem.name} does not generate images")
        hypotheses = self._decoder([Request(limit=images.num_values)] * count)
        return images.from_tokens([best.tokens for best, *_ in hypotheses])

    def scores(self, lines: Sequence[str], path: str = "") -> list[float]:
        """Returns the natural logarithm of the probability of each line's targets, EOS included.

        A line is `inputs<TAB>targets`; for a model without inputs, `targets`.

        Raises:
          UsageError: the problem has no text.
          ValueError: a line has no tab, is too long for the model, or cannot be encoded.
        """
        codec = self._codec
        reads_inputs, eos_id = self._spec.problem.reads_inputs, codec.end_of_document
        rows = []
        for number, line in enumerate(lines, start=1):
            with naming_line(path, number):
                source, tab, target = line.partition("\t") if reads_inputs else ("", "\t", line)
                if not tab:
                    raise ValueError(f"no tab between inputs and targets: {line!r}")
                targets = [*encode_prompt(codec, target), eos_id]
                inputs = [*encode_prompt(codec, source), eos_id] if reads_inputs else None
                for name, tokens in (("target", targets), ("input", inputs or ())):
                    check_length(name, tokens, self._max_length)
                rows.append(ScoredRow(targets, inputs))
        return [each.log_prob for each in self.scorer(rows)]

    @functools.cached_property
    def scorer(self) -> Scorer:
        """Scores rows with the checkpoint, in batches of the options' `batch_size`.

        A model with experts scores one row at a time, because the tokens of one row can take
        the places of another row's tokens in an expert.
        """
        has_experts = getattr(self._spec.model_class, "has_experts", False)
        size = 1 if has_experts else self._decoder.options.batch_size
        estimator = self._estimator
        return Scorer(
            lambda features, batch: estimator.build(ModeKeys.SCORE, features)(batch),
            *(estimator.layout, self._max_length, size),
        )


def tokens_of(source: ExampleSource, feature: str, rows: np.ndarray) -> list[list[int]]:
    """Returns a feature's tokens in some examples, without padding: `inputs` or `targets`.

    Padding is recognized by its segment 0, because the id 0 may be a token of a tokenizer.
    """
    all_parts = (slice(None),)
    tokens = source.read(feature, rows, all_parts)
    segments = source.read(f"{feature}_segmentation", rows, all_parts)
    pairs = zip(tokens, segments, strict=True)
    return [row[of_row != 0].tolist() for row, of_row in pairs]


def with_eos(
    options: DecodeOptions, problem: Problem, data_dir: str | PathLike[str]
) -> DecodeOptions:
    """Returns the options with the problem's EOS tokens, unless the options have EOS tokens.

    For a problem without EOS, EOS tokens in the options are removed.
    """
    if problem.eos_id == NO_EOS:
        return replace(options, eos_id=NO_EOS)
    codec = problem.codec(data_dir) if options.eos_id is None else None
    return replace(options, eos_id=codec.end_ids) if codec is not None else options


def codec_for(problem: Problem, data_dir: str | PathLike[str]) -> Codec:
    """Returns a problem's codec; raises UsageError if it has neither text nor tokens to decode."""
    codec = problem.codec(data_dir)
    if codec is None:
        raise UsageError(
            f"{problem.name} has no targets of text or tokens to decode (t2tp_trainer"
            " --schedule=evaluate evaluates its models, t2tp_exporter exports them)"
        )
    return codec


def request_for(problem: Problem, codec: Codec, text: str, beginning: str = "") -> Request:
    """Returns the decoding request for a line.

    For a problem with inputs, the line is the inputs, to which EOS is appended, and `beginning` is
    the prefix of the targets. Otherwise the line is a prompt, and `beginning` must be empty.

    Raises:
      ValueError: the codec cannot encode the line, or a language model is given a prefix.
    """
    if problem.reads_inputs:
        inputs = [*encode_prompt(codec, text), codec.end_of_document]
        return Request(inputs=inputs, prefix=encode_prompt(codec, beginning))
    if beginning:
        raise ValueError("a language model takes no prefix: put it into the prompt")
    return Request(prefix=encode_prompt(codec, text))


def check_writes(model: str) -> None:
    """Raises UsageError if a model is not autoregressive.

    Raises:
      UsageError: the model is not autoregressive.
      UnknownNameError: there is no such model.
    """
    if not issubclass(registry.model(model), AutoregressiveModel):
        raise UsageError(f"the model {model} does not generate tokens: there is nothing to decode")


def encode_prompt(codec: Codec, text: str) -> list[int]:
    """Encodes a text for decoding or scoring; raises ValueError if it is far too long.

    A tokenizer needs about 200 bytes of memory for each character.
    """
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"{len(text):,} characters, and {_MAX_CHARACTERS:,} are the maximum")
    return codec.encode(text)


@contextlib.contextmanager
def naming_line(path: str, number: int) -> Iterator[None]:
    """Adds file and line number to a ValueError inside the context, if there is a path."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}" if path else str(error)) from error
