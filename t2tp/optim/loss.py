"""The loss of a batch: a sum of weighted averages, each with its own total and weight.

For example, the cross-entropy is an average over target tokens, and the load balance of an
encoder's experts is an average over input tokens. Microbatches and evaluation batches differ in
their numbers of tokens. An average of averages would depend on how a batch is divided, but totals
and weights add up:

    microbatch 1   cross_entropy 12.0 / 4 tokens   load_balance 9.0 / 6 tokens
    microbatch 2   cross_entropy  6.0 / 2 tokens   load_balance 8.0 / 8 tokens
    batch          cross_entropy 18.0 / 6          load_balance 17.0 / 14          loss 4.214
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from t2tp import mtf

# Avoids 0 / 0 if a batch has no tokens: total and weight are then 0.
_LEAST_WEIGHT = 1e-30


@dataclass(frozen=True)
class LossTerm:
    """A weighted average that is part of a loss.

    Attributes:
      total: float32 scalar, the sum of the weighted addends times the term's coefficient.
      weight: float32 scalar, the sum of the weights, which must depend on the features alone.
    """

    total: mtf.Tensor
    weight: mtf.Tensor

    def mean(self, weight: mtf.Tensor | None = None) -> mtf.Tensor:
        """Returns total / weight, by default with this batch's own weight."""
        weight = mtf.stop_gradient(self.weight if weight is None else weight)
        return self.total / mtf.maximum(weight, _LEAST_WEIGHT)


@dataclass(frozen=True)
class LossOutput:
    """A model's loss and metrics for a batch.

    Attributes:
      terms: the terms of the loss, by name.
      metrics: float32 scalars by name, each a sum over the batch. A problem adds them up over
        batches and derives its metrics from the sums.
    """

    terms: Mapping[str, LossTerm]
    metrics: Mapping[str, mtf.Tensor] = field(default_factory=dict)

    @functools.cached_property
    def loss(self) -> mtf.Tensor:
        """The sum of the terms' means, a float32 scalar that training minimizes."""
        return mtf.add_n([term.mean() for term in self.terms.values()])

    @property
    def sums(self) -> dict[str, mtf.Tensor]:
        """The metrics, and each term's `loss/<name>` and `loss_weight/<name>`."""
        totals = {f"loss/{name}": term.total for name, term in self.terms.items()}
        weights = {f"loss_weight/{name}": term.weight for name, term in self.terms.items()}
        return {**self.metrics, **totals, **weights}
