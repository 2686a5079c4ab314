"""Scores of decoded text, from the packages that papers use: sacrebleu, rouge-score."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from t2tp.optional_import import optional_import

Texts = Sequence[str]


def bleu(predictions: Texts, references: Texts) -> float:
    """Computes BLEU of the corpus, 0 to 100, with sacrebleu's defaults (13a tokens, cased)."""
    return _sacrebleu().corpus_bleu(list(predictions), [list(references)]).score


def chrf(predictions: Texts, references: Texts) -> float:
    """Computes chrF2 of the corpus, 0 to 100, with sacrebleu's defaults."""
    return _sacrebleu().corpus_chrf(list(predictions), [list(references)]).score


def word_f1(predictions: Texts, references: Texts) -> float:
    """Computes the mean F1 of the words that prediction and reference share, 0 to 100.

    Words are compared in lower case, without punctuation and articles, as in SQuAD (P. Rajpurkar et
    al., arXiv:1606.05250, section 6.1).
    """
    pairs = zip(predictions, references, strict=True)
    return 100 * sum(_word_f1(*pair) for pair in pairs) / max(1, len(references))


def exact_match(predictions: Texts, references: Texts) -> float:
    """Computes the percentage of predictions that equal their reference."""
    pairs = zip(predictions, references, strict=True)
    return 100 * sum(one == other for one, other in pairs) / max(1, len(references))


SCORES: dict[str, Callable[[Texts, Texts], float]] = {
    "bleu": bleu,
    "chrf": chrf,
    "rouge1": lambda *texts: rouge("rouge1", *texts),
    "rouge2": lambda *texts: rouge("rouge2", *texts),
    # Over sentences, one per line.
    "rouge_l": lambda *texts: rouge("rougeLsum", *texts),
    "word_f1": word_f1,
    "exact_match": exact_match,
}


def score(names: Sequence[str], predictions: Texts, references: Texts) -> dict[str, float]:
    """Scores decoded texts by names in `SCORES`, given an expected text for each prediction.

    Raises:
      ValueError: the numbers of predictions and references differ, or are 0.
      ModuleNotFoundError: the package of a score is not installed.
    """
    if len(predictions) != len(references) or not references:
        raise ValueError(
            f"{len(predictions)} predictions and {len(references)} references: expected one"
            " reference per prediction, and at least one"
        )
    return {name: SCORES[name](predictions, references) for name in names}


def _sacrebleu() -> Any:
    with optional_import("BLEU and chrF are scored by sacrebleu: pip install -e '.[text]'"):
        import sacrebleu
    return sacrebleu


def rouge(kind: str, predictions: Texts, references: Texts) -> float:
    """Computes ROUGE, the mean F1 of words, pairs of words or subsequences, 0 to 100."""
    with optional_import("ROUGE is scored by rouge-score: pip install -e '.[text]'"):
        from rouge_score.rouge_scorer import RougeScorer
    scorer = RougeScorer([kind], use_stemmer=True)
    pairs = zip(references, predictions, strict=True)
    values = [scorer.score(reference, prediction)[kind].fmeasure for reference, prediction in pairs]
    return 100 * sum(values) / len(values)


_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _words(text: str) -> list[str]:
    bare = text.lower().translate(_PUNCTUATION)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _word_f1(prediction: str, reference: str) -> float:
    predicted, expected = _words(prediction), _words(reference)
    common = sum((Counter(predicted) & Counter(expected)).values())
    if not (predicted and expected):
        return float(predicted == expected)
    return 2 * common / (len(predicted) + len(expected))
