"""Log-probabilities of given targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from t2tp.decoding.decoder import Predict, check_length, round_up
from t2tp.decoding.prompt_batch import pad, sequence_arrays, sequence_features
from t2tp.mesh.layout import Layout
from t2tp.program.program import Feature


class Scorer:
    """Sums the log-probabilities of target tokens, in one forward pass per row.

    The pass is the model's `loss`, whose sums are over a whole batch; so a batch has one row that
    counts, and empty rows if the layout requires more.
    """

    def __init__(self, evaluate: Predict, layout: Layout, max_length: int) -> None:
        """Sets the programs to score with.

        Args:
          evaluate: runs a model's `loss` without dropout; returns its metrics, which must include
            `nll`.
          layout: the mesh's layout.
          max_length: max tokens of targets, and of inputs.
        """
        self._evaluate = evaluate
        self._max_length = max_length
        axis = layout.axis_of("batch")
        self._rows = axis.size if axis else 1

    def iterate(
        self, targets: Sequence[Sequence[int]], inputs: Sequence[Sequence[int]] | None = None
    ) -> Iterator[float]:
        """Scores rows, one after the other.

        Args:
          targets: tokens, with EOS.
          inputs: the model's inputs for each; None for a model without inputs.

        Yields:
          the natural logarithm of the probability of the row's tokens.

        Raises:
          ValueError: a row is longer than `max_length`.
        """
        for number, sequence in enumerate(targets):
            read = {"targets": sequence}
            if inputs is not None:
                read["inputs"] = inputs[number]
            features: dict[str, Feature] = {}
            batch: dict[str, np.ndarray] = {}
            for name, tokens in read.items():
                check_length(name, tokens, self._max_length)
                length = min(round_up(len(tokens)), self._max_length)
                features |= sequence_features(name, self._rows, length)
                batch |= sequence_arrays(name, *pad([tokens], self._rows, length))
            yield -float(np.asarray(self._evaluate(features, batch)["nll"]))
