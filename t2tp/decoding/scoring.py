"""Scores rows: the log-probabilities of given targets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.decoding import decoder
from t2tp.decoding.prompt_batch import first_token, pad, sequence_arrays, sequence_features
from t2tp.mesh.layout import Layout
from t2tp.models.autoregressive import AutoregressiveModel
from t2tp.models.losses import TARGETS_WEIGHTS, weights_of_targets
from t2tp.ops.cross_entropy.operation import softmax_cross_entropy
from t2tp.program.program import Feature


@dataclass(frozen=True)
class ScoredRow:
    """Targets to score.

    Attributes:
      targets: tokens that are only read, then tokens to score. No EOS is added to them.
      inputs: tokens that an encoder reads; None for a model without inputs.
      start: index of the first target to score.
      first_token: the input token at position 0; None: the model's `bos_token_id`.
    """

    targets: Sequence[int]
    inputs: Sequence[int] | None = None
    start: int = 0
    first_token: int | None = None


@dataclass(frozen=True)
class Score:
    """The score of a row.

    Attributes:
      log_prob: log-probability (natural logarithm) of the scored targets.
      is_greedy: whether each scored target is the most probable token.
    """

    log_prob: float
    is_greedy: bool


def score(
    model: AutoregressiveModel, mesh: Mesh, features: Mapping[str, mtf.Tensor]
) -> dict[str, mtf.Tensor]:
    """Builds the scores of a batch.

    The model has a method `logits` like `TransformerLm.logits`. `features` are the features of the
    model's `loss`, and `targets_weights`.

    Returns:
      `log_probs`, float32 [batch, length], the scored targets' log-probabilities, 0 elsewhere; and
      `mistakes`, float32 [batch], the number of scored targets that are not the most probable
      token.

    Raises:
      ValueError: the model has no method `logits`.
    """
    if not hasattr(model, "logits"):
        raise ValueError(
            f"{type(model).__name__} has no method logits(mesh, features), from which"
            " rows are scored"
        )
    logits = mtf.cast(model.logits(mesh, features), tf.float32)
    targets, weights = features["targets"], weights_of_targets(features)
    rows, vocab = mtf.Shape(targets.shape.dims[:1]), logits.shape.dims[-1]
    nll = softmax_cross_entropy(logits, targets, vocab)
    is_wrong = mtf.cast(mtf.not_equal(mtf.argmax(logits, vocab), targets), tf.float32)
    return {
        "log_probs": -nll * weights,
        "mistakes": mtf.reduce_sum(is_wrong * weights, output_shape=rows),
    }


class Scorer:
    """Scores rows in batches of similar length; see `ProgramShapes`."""

    def __init__(
        self, evaluate: decoder.Predict, layout: Layout, max_length: int, batch_size: int = 1
    ) -> None:
        """Creates a scorer from a function that runs the programs.

        Args:
          evaluate: runs `score` for a model.
          layout: the mesh's layout, which rounds the batch size up; see `padded_rows`.
          max_length: max number of targets, and of inputs.
          batch_size: number of rows scored together. It should be 1 for experts with a capacity,
            because one row can displace another row's tokens.
        """
        self._evaluate = evaluate
        self._max_length = max_length
        self._rows = decoder.padded_rows(batch_size, layout)
        self._count = min(batch_size, self._rows)
        # The experts' capacity depends on the padded length. So for a row scored alone, this length
        # does not depend on other rows.
        self._shapes = decoder.ProgramShapes(
            self._rows, decoder.TRACING_TOKENS if self._count > 1 else 0
        )

    def __call__(self, rows: Sequence[ScoredRow]) -> list[Score]:
        """Scores rows; see `iterate`."""
        scores = dict(self.iterate(rows))
        return [scores[number] for number in range(len(rows))]

    def iterate(self, rows: Sequence[ScoredRow]) -> Iterator[tuple[int, Score]]:
        """Scores rows; yields each with its index as soon as its batch is done.

        Raises:
          ValueError: a row is longer than `max_length`, or only some rows have inputs or a first
            token.
        """
        if len({each.inputs is None for each in rows}) > 1:
            raise ValueError("some rows have inputs and some have none: score them separately")
        for each in rows:
            decoder.check_length("target", each.targets, self._max_length)
            decoder.check_length("input", each.inputs or (), self._max_length)
        sizes = [self._sizes(each) for each in rows]
        for numbers, lengths in self._shapes.batches(sizes, self._count):
            batch = self._batch([rows[number] for number in numbers], lengths)
            outputs = self._evaluate(*batch)
            log_probs, mistakes = (np.asarray(outputs[name]) for name in ("log_probs", "mistakes"))
            for row, number in enumerate(numbers):
                # Adds in the same order as decoding, so that the sums are equal.
                total = np.cumsum(log_probs[row])[-1]
                yield number, Score(float(total), not mistakes[row])

    def _sizes(self, row: ScoredRow) -> decoder.Lengths:
        """Returns the lengths of the targets and of the inputs, if any, rounded up."""
        read = [row.targets] if row.inputs is None else [row.targets, row.inputs]
        # If batches have several rows, the lengths need less rounding here, because `ProgramShapes`
        # also pads them.
        parts = 8 if self._count > 1 else 2
        return tuple(min(decoder.round_up(len(tokens), parts), self._max_length) for tokens in read)

    def _batch(
        self, rows: Sequence[ScoredRow], lengths: decoder.Lengths
    ) -> tuple[dict[str, Feature], dict[str, np.ndarray]]:
        """Returns features and arrays of some rows, padded to `lengths`."""
        read = {"targets": [each.targets for each in rows]}
        if rows[0].inputs is not None:
            read["inputs"] = [each.inputs or () for each in rows]
        features: dict[str, Feature] = {}
        batch: dict[str, np.ndarray] = {}
        for (name, tokens), size in zip(read.items(), lengths, strict=True):
            features |= sequence_features(name, self._rows, size)
            batch |= sequence_arrays(name, *pad(tokens, self._rows, size))
        features[TARGETS_WEIGHTS] = features["targets"]
        weights = np.zeros_like(batch["targets"])
        for row, each in enumerate(rows):
            weights[row, each.start : len(each.targets)] = 1
        batch[TARGETS_WEIGHTS] = weights
        return first_token(features, batch, [each.first_token for each in rows])
