"""Log-probabilities of given targets, row by row."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from t2tp import mtf
from t2tp.decoding.decoder import Predict, check_length, padded_rows, round_up
from t2tp.decoding.prompt_batch import first_token, pad, sequence_arrays, sequence_features
from t2tp.mesh.layout import Layout
from t2tp.models.autoregressive import AutoregressiveModel
from t2tp.models.transformer_losses import TARGETS_WEIGHTS, weights_of_targets
from t2tp.ops.cross_entropy.operation import softmax_cross_entropy
from t2tp.program.program import Feature, Mesh

# Tracing a program takes about as long as scoring this many tokens with a small model.
_TRACING_TOKENS = 8192


@dataclass(frozen=True)
class ScoredRow:
    """Targets to score.

    Attributes:
      targets: their tokens; with EOS if it counts.
      inputs: tokens that the model reads; None for a model without inputs.
      start: index of the first target that counts; those before it are only read.
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
      log_prob: natural logarithm of the probability of the targets that count.
      is_greedy: whether each of these targets is the most probable token.
    """

    log_prob: float
    is_greedy: bool


def score(
    model: AutoregressiveModel, mesh: Mesh, features: Mapping[str, mtf.Tensor]
) -> dict[str, mtf.Tensor]:
    """Builds the scores of a batch.

    Args:
      model: a model with a method `logits`, as `TransformerLm.logits`.
      mesh: the program's mesh.
      features: as of the model's `loss`, and `targets_weights`.

    Returns:
      `log_probs`, float32 [batch, length], of the targets that count, 0 elsewhere; and `mistakes`,
      float32 [batch]: how many targets that count are not the most probable token.

    Raises:
      ValueError: the model has no method `logits`.
    """
    if not hasattr(model, "logits"):
        raise ValueError(
            f"{type(model).__name__} has no method logits(mesh, features, training), from which"
            " rows are scored"
        )
    logits = mtf.cast(model.logits(mesh, features, False)[0], tf.float32)
    targets, weights = features["targets"], weights_of_targets(features)
    rows, vocab = mtf.Shape(targets.shape.dims[:1]), logits.shape.dims[-1]
    nll = softmax_cross_entropy(logits, targets, vocab)
    is_wrong = mtf.cast(mtf.not_equal(mtf.argmax(logits, vocab), targets), tf.float32)
    return {
        "log_probs": -nll * weights,
        "mistakes": mtf.reduce_sum(is_wrong * weights, output_shape=rows),
    }


class Scorer:
    """Scores rows in batches of similar length; each batch shape is a program, traced once.

    A batch is padded to a longer shape where another program would cost more than the padding.
    """

    def __init__(
        self, evaluate: Predict, layout: Layout, max_length: int, batch_size: int = 1
    ) -> None:
        """Sets the programs to score with.

        Args:
          evaluate: runs `score` of a model.
          layout: the mesh's layout; a batch has at least one row per slice.
          max_length: max tokens of targets, and of inputs.
          batch_size: number of rows scored together. Experts with a capacity see the whole batch,
            so their rows are scored one by one.
        """
        self._evaluate = evaluate
        self._max_length = max_length
        self._rows = padded_rows(batch_size, layout)
        self._count = min(batch_size, self._rows)
        self._traced: set[int] = set()  # Lengths that have a program.

    def __call__(self, rows: Sequence[ScoredRow]) -> list[Score]:
        """Scores rows; see `iterate`."""
        scores = dict(self.iterate(rows))
        return [scores[number] for number in range(len(rows))]

    def iterate(self, rows: Sequence[ScoredRow]) -> Iterator[tuple[int, Score]]:
        """Scores rows; yields each with its index as soon as its batch is done.

        Raises:
          ValueError: a row is longer than `max_length`.
        """
        for each in rows:
            check_length("target", each.targets, self._max_length)
            check_length("input", each.inputs or (), self._max_length)
        sizes = [(len(each.targets), len(each.inputs or ())) for each in rows]
        order = sorted(range(len(rows)), key=lambda number: sizes[number], reverse=True)
        begins = range(0, len(order), self._count)
        lengths = [self._rounded(sizes[order[begin]][0]) for begin in begins]
        padded = self._padded_lengths(lengths)
        for begin, length in zip(begins, lengths, strict=True):
            numbers = order[begin : begin + self._count]
            batch = self._batch([rows[number] for number in numbers], padded[length])
            outputs = self._evaluate(*batch)
            log_probs, mistakes = (np.asarray(outputs[name]) for name in ("log_probs", "mistakes"))
            for row, number in enumerate(numbers):
                # In the order in which decoding adds them up.
                total = np.cumsum(log_probs[row])[-1]
                yield number, Score(float(total), not mistakes[row])

    def _rounded(self, size: int) -> int:
        return min(round_up(size), self._max_length)

    def _padded_lengths(self, lengths: Sequence[int]) -> dict[int, int]:
        """Chooses a program's length for each length of a batch, at the least total cost.

        The cost, in tokens, is the programs to trace and the batches with their padding. It is the
        same on all processes, since no time is measured.
        """
        counts = Counter(lengths)
        candidates = sorted(counts.keys() | self._traced)
        best: list[tuple[int, dict[int, int]]] = [(0, {})]  # For the shortest n candidates.
        for end, length in enumerate(candidates, start=1):
            # A row alone has its own length: the capacity of experts depends on it.
            tracing = 0 if length in self._traced or self._count == 1 else _TRACING_TOKENS
            row = self._rows * length
            costs = [
                (before + tracing + row * sum(counts[n] for n in candidates[begin:end]), begin)
                for begin, (before, _) in enumerate(best)
            ]
            cost, begin = min(costs)
            best.append((cost, best[begin][1] | dict.fromkeys(candidates[begin:end], length)))
        needed = sum(each <= max(lengths, default=0) for each in candidates)
        _, padded = min(best[needed:], key=lambda each: each[0])
        self._traced.update(padded[length] for length in lengths)
        return padded

    def _batch(
        self, rows: Sequence[ScoredRow], length: int
    ) -> tuple[dict[str, Feature], dict[str, np.ndarray]]:
        """Returns features and arrays of some rows, with targets padded to a length."""
        read = {"targets": [each.targets for each in rows]}
        if rows[0].inputs is not None:
            read["inputs"] = [each.inputs or () for each in rows]
        features: dict[str, Feature] = {}
        batch: dict[str, np.ndarray] = {}
        for name, tokens in read.items():
            size = length if name == "targets" else self._rounded(max(map(len, tokens)))
            features |= sequence_features(name, self._rows, size)
            batch |= sequence_arrays(name, *pad(tokens, self._rows, size))
        features[TARGETS_WEIGHTS] = features["targets"]
        weights = np.zeros_like(batch["targets"])
        for row, each in enumerate(rows):
            weights[row, each.start : len(each.targets)] = 1
        batch[TARGETS_WEIGHTS] = weights
        return first_token(features, batch, [each.first_token for each in rows])
