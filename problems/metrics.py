"""The metrics of an evaluation, computed from sums over all its batches.

The sums cover all batches and devices, and empty rows have weight 0. So the metrics cover the whole
split, and do not depend on the batch size or the mesh. Models compute the sums with the functions
in `t2tp.metrics`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

Sums = Mapping[str, float]

_TERM = "loss/"


class Metric(NamedTuple):
    """A metric.

    Attributes:
      sums: names of the sums that the metric is computed from. A name that ends in "/" stands for
        all sums with this prefix.
      value: sums -> metric.
      not_with: name of a sum; for a model with this sum, the metric would be misleading. "": none.
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


def loss_terms(sums: Sums) -> dict[str, float]:
    """Returns each term of the loss, averaged over its weight; see `t2tp.optim.loss`."""
    totals = {name: total for name, total in sums.items() if name.startswith(_TERM)}
    weights = {name: sums[f"loss_weight/{name.removeprefix(_TERM)}"] for name in totals}
    return {name: total / weights[name] if weights[name] else 0.0 for name, total in totals.items()}


def _perplexity(sums: Sums) -> float:
    nats = _nats(sums)
    return math.exp(nats) if nats < 700 else math.inf


_NATS = ("nll", "tokens")
# Metrics of problems whose targets are texts.
TEXT_METRICS = ("loss", "accuracy", "accuracy_per_sequence", "neg_log_perplexity", "perplexity")

METRICS: dict[str, Metric] = {
    # The quantity that training minimizes, including label smoothing and the experts' losses.
    "loss": Metric((_TERM,), lambda sums: sum(loss_terms(sums).values())),
    # Nats per predicted token.
    "neg_log_perplexity": Metric(_NATS, lambda sums: -_nats(sums)),
    "perplexity": Metric(_NATS, _perplexity),
    # Not for masked language models: they predict only a part of the text.
    "bits_per_byte": Metric(
        ("nll", "bytes"),
        lambda sums: sums["nll"] / math.log(2) / sums["bytes"],
        not_with="unmasked_tokens",
    ),
    # A dimension is a predicted token: one channel of one pixel.
    "bits_per_dim": Metric(_NATS, lambda sums: _nats(sums) / math.log(2)),
    "accuracy": _ratio("correct", "tokens"),
    "accuracy_top5": _ratio("correct_top_5", "tokens"),
    # Fraction of sequences with every token correct.
    "accuracy_per_sequence": _ratio("correct_sequences", "sequences"),
    # The harmonic mean of precision and recall for class 1 of two classes.
    "f1": Metric(
        ("true_positives", "predicted_positives", "positives"),
        lambda sums: (
            2 * sums["true_positives"] / max(1.0, sums["predicted_positives"] + sums["positives"])
        ),
    ),
    # Pairs of replies. A reward is beta times the log-probability relative to the reference.
    "reward_chosen": _ratio("chosen_rewards", "pairs"),
    "reward_rejected": _ratio("rejected_rewards", "pairs"),
    "reward_margin": Metric(
        ("chosen_rewards", "rejected_rewards", "pairs"),
        lambda sums: (sums["chosen_rewards"] - sums["rejected_rewards"]) / max(1.0, sums["pairs"]),
    ),
    # Fraction of pairs whose chosen reply has the higher reward.
    "reward_accuracy": _ratio("preferred", "pairs"),
    "log_prob_chosen": _ratio("chosen_log_probs", "pairs"),
    "log_prob_rejected": _ratio("rejected_log_probs", "pairs"),
    # An estimate from the data's replies: the mean of log p(reply) - log p_ref(reply).
    "reference_kl": Metric(
        ("log_ratios", "pairs"), lambda sums: sums["log_ratios"] / max(1.0, 2 * sums["pairs"])
    ),
}
_PROBLEMS_CHOOSE = frozenset(METRICS)
METRICS["expert_dropped_share"] = _ratio("expert_dropped", "expert_choices")


_NOT_OF_MASKED = (
    "means nothing for a masked language model, which is shown most of the text: see loss, accuracy"
    " and perplexity, which are of the masked tokens"
)


def needed_sums(names: Iterable[str]) -> set[str]:
    """Returns the names of the sums that metrics need."""
    return {name for metric in names for name in METRICS[metric].sums}


def possible(names: Iterable[str], sums: Sums) -> list[str]:
    """Returns the metrics that can be computed from sums."""
    return [
        name for name in names if not _missing([name], sums) and METRICS[name].not_with not in sums
    ]


def why_not(names: Iterable[str], sums: Sums, model: str = "the model") -> str:
    """Explains why metrics cannot be computed from a model's sums; "" if they can."""
    reasons = []
    if missing := _missing(names, sums):
        reasons.append(f"{model} does not count {', '.join(missing)}")
    if misleading := [name for name in names if METRICS[name].not_with in sums]:
        reasons.append(f"{', '.join(misleading)} {_NOT_OF_MASKED}")
    return "; ".join(reasons)


def _missing(names: Iterable[str], sums: Sums) -> list[str]:
    """Returns the needed names that `sums` lacks."""
    return [
        each
        for each in sorted(needed_sums(names))
        if not any(name == each or (each.endswith("/") and name.startswith(each)) for name in sums)
    ]


def reported(names: Iterable[str], sums: Sums) -> dict[str, float]:
    """Returns all metrics to report.

    They are the named metrics that can be computed, the terms of the loss if it has several, the
    model's own metrics, and the sums that no metric reads.
    """
    own = [name for name in METRICS if name not in _PROBLEMS_CHOOSE and name not in names]
    figures = compute(possible([*names, *own], sums), sums)
    terms = loss_terms(sums)
    read = {name for metric in METRICS.values() for name in (*metric.sums, metric.not_with)}
    unread = {name: sums[name] for name in sums if name not in read and "/" not in name}
    return figures | (terms if len(terms) > 1 else {}) | unread


def compute(names: Iterable[str], sums: Sums) -> dict[str, float]:
    """Returns metrics by name, computed from sums over all batches.

    Raises:
      ValueError: no token was predicted, a sum is missing, or a metric is misleading for the model.
    """
    if not sums.get("tokens", 0) > 0:
        raise ValueError(f"no metrics without a predicted token: the sums are {dict(sums)}")
    figures = {}
    for name in names:
        if missing := _missing([name], sums):
            raise ValueError(
                f"the metric {name} needs the sums {', '.join(missing)}, and the model counted "
                f"{', '.join(sums)}: add them with the functions of t2tp.metrics"
            )
        if METRICS[name].not_with in sums:
            raise ValueError(f"{name} {_NOT_OF_MASKED}")
        figures[name] = METRICS[name].value(sums)
    return figures
