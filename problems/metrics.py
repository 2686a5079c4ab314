"""The metrics of an evaluation, computed from sums over all its batches.

Sums add up over batches, empty rows (of weight 0) and devices, so the metrics are those of the
whole split whatever the batch size and the mesh. Models compute the sums with the functions in
`t2tp.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

Sums = Mapping[str, float]


class Metric(NamedTuple):
    """A metric.

    Attributes:
      sums: names of the sums that it is computed from.
      value: sums -> metric.
      not_with: a sum in whose presence the metric would be misleading; "" for none.
    """

    sums: tuple[str, ...]
    value: Callable[[Sums], float]
    not_with: str = ""


def _ratio(part: str, denominator: str) -> Metric:
    return Metric(
        (part, denominator),
        lambda sums: sums[part] / sums[denominator] if sums[denominator] else 0.0,
    )


def _nats(sums: Sums) -> float:
    return sums["nll"] / sums["tokens"]


def _perplexity(sums: Sums) -> float:
    nats = _nats(sums)
    return math.exp(nats) if nats < 700 else math.inf


_LOSS = ("nll", "tokens")

METRICS: dict[str, Metric] = {
    # Nats per predicted token.
    "loss": Metric(_LOSS, _nats),
    "neg_log_perplexity": Metric(_LOSS, lambda sums: -_nats(sums)),
    "perplexity": Metric(_LOSS, _perplexity),
    # Not for masked language models, which predict only a part of the text.
    "bits_per_byte": Metric(
        ("nll", "bytes"),
        lambda sums: sums["nll"] / math.log(2) / sums["bytes"],
        not_with="unmasked_tokens",
    ),
    # A dimension is a predicted token: one channel of one pixel.
    "bits_per_dim": Metric(_LOSS, lambda sums: _nats(sums) / math.log(2)),
    "accuracy": _ratio("correct", "tokens"),
    "accuracy_top5": _ratio("correct_top_5", "tokens"),
    # Fraction of sequences with every token correct.
    "accuracy_per_sequence": _ratio("correct_sequences", "sequences"),
    # Of class 1 of two: the harmonic mean of precision and recall.
    "f1": Metric(
        ("true_positives", "predicted_positives", "positives"),
        lambda sums: (
            2 * sums["true_positives"] / max(1.0, sums["predicted_positives"] + sums["positives"])
        ),
    ),
}


_NOT_OF_MASKED = (
    "means nothing for a masked language model, which is shown most of the text: see loss, accuracy"
    " and perplexity, which are of the masked tokens"
)


def needed_sums(names: Iterable[str]) -> set[str]:
    """Returns the sums that metrics are computed from."""
    return {name for metric in names for name in METRICS[metric].sums}


def possible(names: Iterable[str], sums: Sums) -> list[str]:
    """Returns the metrics that can be computed from sums."""
    return [
        name
        for name in names
        if needed_sums([name]) <= sums.keys() and METRICS[name].not_with not in sums
    ]


def why_not(names: Iterable[str], sums: Sums, model: str = "the model") -> str:
    """Returns why metrics cannot be computed from the sums of a model; "" if they can."""
    reasons = []
    if missing := sorted(needed_sums(names) - sums.keys()):
        reasons.append(f"{model} does not count {', '.join(missing)}")
    if misleading := [name for name in names if METRICS[name].not_with in sums]:
        reasons.append(f"{', '.join(misleading)} {_NOT_OF_MASKED}")
    return "; ".join(reasons)


def compute(names: Iterable[str], sums: Sums) -> dict[str, float]:
    """Returns metrics by name.

    Args:
      names: of `METRICS`.
      sums: over all batches.

    Raises:
      ValueError: nothing was predicted, a sum is missing, or a metric is misleading for the
        model; names it.
    """
    if not sums.get("tokens", 0) > 0:
        raise ValueError(f"no metrics without a predicted token: the sums are {dict(sums)}")
    figures = {}
    for name in names:
        missing = [each for each in METRICS[name].sums if each not in sums]
        if missing:
            raise ValueError(
                f"the metric {name} needs the sums {', '.join(missing)}, and the model counted "
                f"{', '.join(sums)}: add them with the functions of t2tp.metrics"
            )
        if METRICS[name].not_with in sums:
            raise ValueError(f"{name} {_NOT_OF_MASKED}")
        figures[name] = METRICS[name].value(sums)
    return figures
