"""Decodes and scores with the model of a run: from lines of text to lines of text."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike

import numpy as np

from t2tp import registry
from t2tp.decoding import DecodeOptions, Decoder, Hypothesis, Request
from t2tp.decoding.scoring import Scorer
from t2tp.hparam import HParams
from t2tp.mesh.program import Feature
from t2tp.models.autoregressive import AutoregressiveModel
from t2tp.problems.images import ImageGenerationProblem
from t2tp.problems.problem import Problem
from t2tp.problems.text_to_text import PairProblem
from t2tp.problems.vocabulary import END_OF_DOCUMENT
from t2tp.trainer.codecs import codec_of
from t2tp.trainer.errors import UsageError
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.model_fn import ModeKeys


@dataclass(frozen=True)
class Decoded:
    """A text that was decoded.

    Attributes:
      text: without what it was the continuation of.
      score: what texts of a source are ordered by; see `Hypothesis`.
    """

    text: str
    score: float


@dataclass(frozen=True)
class DecodedRow:
    """An example of a split, and what was decoded for it.

    Attributes:
      inputs: its source.
      targets: its reference.
      outputs: what was decoded, the best first.
    """

    inputs: str
    targets: str
    outputs: list[Decoded]


class RunDecoder:
    """Decodes with the newest checkpoint of a run, or the one its config names."""

    def __init__(
        self,
        estimator: Estimator,
        problem: Problem,
        data_dir: str | PathLike[str],
        hparams: HParams,
        options: DecodeOptions,
    ) -> None:
        """Builds nothing yet.

        Args:
          estimator: of a model function with the same options; see `model_fn_of`.
          problem: what the model was trained on.
          data_dir: where its data, the vocabulary among them, were prepared.
          hparams: the model's.
          options: how to decode.
        """
        self._estimator = estimator
        self._problem = problem
        self._data_dir = data_dir
        self._max_length = hparams.max_length
        longest = hparams.max_length
        if isinstance(problem, ImageGenerationProblem):
            longest = math.prod(problem.image_shape)
        self._decoder = Decoder(
            estimator.predict,
            estimator.layout,
            options,
            seed=estimator.config.random_seed,
            max_length=longest,
        )

    @property
    def smallest_features(self) -> dict[str, Feature]:
        """Those of the shortest rows: whether they can be built says whether anything can.

        Raises:
          UsageError: the problem has no text.
        """
        codec_of(self._problem, self._data_dir)
        return self._decoder.smallest_features(isinstance(self._problem, PairProblem))

    def text(self, text: str, length: int | None = None) -> str:
        """Decodes a source, or continues a prompt.

        Args:
          text: the source.
          length: most symbols to write; by default as the options say.

        Raises:
          UsageError, ValueError: see `texts`.
        """
        codec = codec_of(self._problem, self._data_dir)
        [[best, *_]] = self._decoder([replace(codec.request(text), limit=length)])
        return codec.decode(best.symbols)

    def texts(
        self, lines: Sequence[str], beginnings: Sequence[str] | None = None
    ) -> Iterator[tuple[int, list[Decoded]]]:
        """Decodes sources, or continues prompts.

        Args:
          lines: the sources or prompts.
          beginnings: how what is decoded for each source begins; what is given is what follows.

        Yields:
          the number of a line and what was decoded for it, the best first, in the order in which
          batches are done.

        Raises:
          UsageError: the problem has no text.
          ValueError: a line is too long for the model, or is not what the problem takes; or a
            prompt has another beginning.
        """
        codec = codec_of(self._problem, self._data_dir)
        beginnings = [""] * len(lines) if beginnings is None else beginnings
        requests = []
        for number, each in enumerate(zip(lines, beginnings, strict=True), start=1):
            with _naming_line(number, len(lines)):
                requests.append(codec.request(*each))
        for number, found in self._decoder.iterate(requests):
            yield number, [Decoded(codec.decode(each.symbols), each.score) for each in found]

    def split(self, split: str, count: int) -> list[DecodedRow]:
        """Decodes examples of a split, in their order; those that evaluation would see.

        Args:
          split: one of the problem's.
          count: how many; -1: all.

        Raises:
          UsageError: the problem has no inputs to decode from.
          ValueError: there is no such split.
        """
        codec = codec_of(self._problem, self._data_dir)
        if not isinstance(self._problem, PairProblem):
            raise UsageError(
                f"{self._problem.name} has no inputs to decode from: give prompts, with"
                " --decode_from_file or --decode_interactive"
            )
        self._problem.check_split(split)
        source = self._problem.examples(self._data_dir, split, self._max_length)
        rows = np.arange(len(source) if count < 0 else min(count, len(source)))
        whole = (slice(None),)
        inputs, targets = (
            [_without_padding(row) for row in source.read(name, rows, whole)]
            for name in ("inputs", "targets")
        )
        found = self._decoder([Request(inputs=row) for row in inputs])
        return [
            DecodedRow(
                codec.decode(source_row),
                codec.decode(target_row),
                [Decoded(codec.decode(each.symbols), each.score) for each in hypotheses],
            )
            for source_row, target_row, hypotheses in zip(inputs, targets, found, strict=True)
        ]

    def pictures(self, count: int) -> np.ndarray:
        """Draws pictures: uint8 [count, height, width, channels], values below `levels`.

        Raises:
          UsageError: the problem is not about making pictures.
        """
        if not isinstance(self._problem, ImageGenerationProblem):
            raise UsageError(f"{self._problem.name} does not make pictures")
        shape = self._problem.image_shape
        found: list[list[Hypothesis]] = self._decoder([Request(limit=math.prod(shape))] * count)
        return np.array([row[0].symbols for row in found], np.uint8).reshape(count, *shape)

    def scores(self, lines: Sequence[str]) -> Iterator[float]:
        """How probable the model finds targets.

        Args:
          lines: `inputs<TAB>targets`; of a model that reads no inputs, `targets`.

        Yields:
          the natural logarithm of the probability of the targets and their end.

        Raises:
          UsageError: the problem has no text.
          ValueError: a line has no tab, is too long for the model, or not what the problem takes.
        """
        codec = codec_of(self._problem, self._data_dir)
        targets, inputs = [], []
        for number, line in enumerate(lines, start=1):
            source, tab, target = line.partition("\t") if codec.reads_inputs else ("", "\t", line)
            if not tab:
                raise ValueError(f"line {number} has no tab between inputs and targets: {line!r}")
            with _naming_line(number, len(lines)):
                targets.append([*codec.encode(target), END_OF_DOCUMENT])
                inputs.append([*codec.encode(source), END_OF_DOCUMENT])
        scorer = Scorer(self._evaluate, self._estimator.layout, self._max_length)
        yield from scorer.iterate(targets, inputs if codec.reads_inputs else None)

    def _evaluate(
        self, features: Mapping[str, Feature], batch: Mapping[str, np.ndarray]
    ) -> Mapping[str, np.ndarray]:
        outputs = self._estimator.build(ModeKeys.EVAL, features)(batch)
        return {"nll": outputs["metrics/nll"]}


def _without_padding(row: np.ndarray) -> list[int]:
    """The symbols of a padded row: 0 is none of them."""
    return row[row != 0].tolist()


def check_writes(model: str) -> None:
    """Refuses a model that writes nothing.

    Raises:
      UsageError: it does not write.
      UnknownNameError: there is no such model.
    """
    if not issubclass(registry.model(model), AutoregressiveModel):
        raise UsageError(f"the model {model} does not write symbol by symbol: nothing to decode")


@contextlib.contextmanager
def _naming_line(number: int, of: int) -> Iterator[None]:
    """While this is active, errors about a line say which of several it is."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"line {number}: {error}" if of > 1 else str(error)) from error
