"""The metrics by which a search ranks its trials."""

from t2tp.best_metric import BestMetric
from t2tp.trainer.errors import UsageError


def parse_objectives(text: str, minimize: bool) -> list[BestMetric]:
    """Parses `METRIC`, `min:METRIC` or `max:METRIC`, or several of these, separated by commas.

    `minimize` is the direction of a metric without `min:` or `max:`.

    Raises:
      UsageError: the text cannot be parsed, or a metric occurs twice.
    """
    objectives = []
    for part in text.split(","):
        kind, colon, metric = part.strip().partition(":")
        if not colon:
            kind, metric = ("min" if minimize else "max"), kind
        if kind not in ("min", "max") or not metric:
            raise UsageError(
                f"--metric={text}: expected METRIC, min:METRIC or max:METRIC, or several with"
                " commas between them"
            )
        objectives.append(BestMetric(metric, kind == "min"))
    if len({each.metric for each in objectives}) < len(objectives):
        raise UsageError(f"--metric={text}: a metric occurs twice")
    return objectives
