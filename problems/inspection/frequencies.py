"""Frequencies of a problem's tokens or classes."""

from collections.abc import Callable, Mapping

import numpy as np

from t2tp.problems.data.columns import Column
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.text import TextProblem

# Number of tokens shown, the most frequent first.
_SHOWN = 10


def frequency_tables(
    problem: Problem, data_dir: AnyPath, columns: Mapping[str, Column], split: str
) -> list[str]:
    """Counts the tokens of each stored feature that consists of tokens.

    Returns:
      A text of several lines for each feature; `split` is a word in its heading.
    """
    sizes = problem.vocab_sizes(data_dir)
    return [
        _table(f"tokens of {name} in {split}", columns[name], size, _namer(problem, data_dir, name))
        for name, size in sizes.items()
        if name in columns
    ]


def _table(what: str, column: Column, size: int, name_of: Callable[[int], str]) -> str:
    counts = column.counts(size)
    different = int((counts > 0).sum())
    lines = [f"{what}: {column.size:,} in all, {different:,} different ones of {size:,}"]
    for token in np.argsort(-counts, kind="stable")[: min(_SHOWN, different)].tolist():
        share = counts[token] / column.size
        lines.append(f"  {counts[token]:>11,}  {share:>6.1%}  {name_of(token)}")
    return "\n".join(lines)


def _namer(problem: Problem, data_dir: AnyPath, feature: str) -> Callable[[int], str]:
    """Returns a function that names a feature's tokens."""
    if problem.writes_classes and feature == "targets":
        return lambda token: f"class {problem.class_names[token]}"
    if isinstance(problem, TextProblem):
        vocabulary = problem.vocabulary(data_dir)
        pieces, end = vocabulary.token_bytes, vocabulary.end_of_document
        return lambda token: (
            "(end)" if token == end else repr(pieces[token].decode("utf-8", "replace"))
        )
    return lambda token: f"token {token}"
