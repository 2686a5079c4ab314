"""The figures of an evaluation, from sums over all its batches.

Sums can be added up over batches, rows that are no examples (they have no weight) and devices, so
the figures are those of the whole split whatever the batch size and the mesh. What a model counts
is made by the functions in `t2tp.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

Sums = Mapping[str, float]


class Metric(NamedTuple):
    """A figure.

    Attributes:
        sums: names of the sums that it is made of.
        value: sums -> figure.
    """

    sums: tuple[str, ...]
    value: Callable[[Sums], float]


def _ratio(part: str, whole: str) -> Metric:
    return Metric((part, whole), lambda sums: sums[part] / sums[whole] if sums[whole] else 0.0)


def _nats(sums: Sums) -> float:
    return sums["nll"] / sums["tokens"]


def _perplexity(sums: Sums) -> float:
    nats = _nats(sums)
    return math.exp(nats) if nats < 700 else math.inf


def _approx_bleu(sums: Sums) -> float:
    """BLEU (Papineni et al. 2002) of n-grams of tokens, up to four, over the whole corpus."""
    predicted, wanted = sums["bleu_predicted"], sums["bleu_wanted"]
    matches = [sums[f"bleu_matches_{n}"] for n in (1, 2, 3, 4)]
    possible = [sums[f"bleu_possible_{n}"] for n in (1, 2, 3, 4)]
    if not all(matches):
        return 0.0
    precision = sum(math.log(m / p) for m, p in zip(matches, possible, strict=True)) / 4
    return math.exp(precision + min(0.0, 1 - wanted / predicted))


_LOSS = ("nll", "tokens")
_BLEU = (
    "bleu_predicted",
    "bleu_wanted",
    *(f"bleu_{kind}_{n}" for kind in ("matches", "possible") for n in (1, 2, 3, 4)),
)

METRICS: dict[str, Metric] = {
    # Nats a predicted symbol.
    "loss": Metric(_LOSS, _nats),
    "neg_log_perplexity": Metric(_LOSS, lambda sums: -_nats(sums)),
    "perplexity": Metric(_LOSS, _perplexity),
    "bits_per_byte": Metric(
        ("nll", "bytes"), lambda sums: sums["nll"] / math.log(2) / sums["bytes"]
    ),
    # A dimension is a predicted symbol: one channel of one pixel.
    "bits_per_dim": Metric(_LOSS, lambda sums: _nats(sums) / math.log(2)),
    "accuracy": _ratio("correct", "tokens"),
    "accuracy_top5": _ratio("correct_top_5", "tokens"),
    # Of sequences with every symbol right.
    "accuracy_per_sequence": _ratio("correct_sequences", "sequences"),
    "approx_bleu": Metric(_BLEU, _approx_bleu),
    # Of class 1, where there are two: the harmonic mean of precision and recall.
    "f1": Metric(
        ("true_positives", "predicted_positives", "positives"),
        lambda sums: (
            2 * sums["true_positives"] / max(1.0, sums["predicted_positives"] + sums["positives"])
        ),
    ),
}


def needed_sums(names: Iterable[str]) -> set[str]:
    """Returns the sums that metrics are made of."""
    return {name for metric in names for name in METRICS[metric].sums}


def compute(names: Iterable[str], sums: Sums) -> dict[str, float]:
    """Returns metrics by name.

    Args:
        names: of `METRICS`.
        sums: over all batches.

    Raises:
        ValueError: nothing was predicted, or a sum is missing; names it.
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
        figures[name] = METRICS[name].value(sums)
    return figures
