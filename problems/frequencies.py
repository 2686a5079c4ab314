"""How often a problem's symbols occur: tokens, or classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from t2tp.problems.columns import Column
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.text import TextProblem
from t2tp.problems.vocabulary import END_OF_DOCUMENT

# How many are shown, the most frequent first.
_SHOWN = 10


def frequency_tables(
    problem: Problem, data_dir: AnyPath, columns: Mapping[str, Column], split: str
) -> list[str]:
    """Counts the symbols of each stored feature that has some.

    Args:
        problem: of any family.
        data_dir: where its data were prepared.
        columns: what is stored of the split.
        split: its name, for the headings.

    Returns:
        Lines for each feature.
    """
    sizes = problem.vocab_sizes(data_dir)
    return [
        _table(
            f"symbols of {name} in {split}", columns[name], size, _namer(problem, data_dir, name)
        )
        for name, size in sizes.items()
        if name in columns
    ]


def _table(what: str, column: Column, size: int, name_of: Callable[[int], str]) -> str:
    counts = column.counts(size)
    different = int((counts > 0).sum())
    lines = [f"{what}: {column.size:,} in all, {different:,} different ones of {size:,}"]
    for symbol in np.argsort(-counts, kind="stable")[: min(_SHOWN, different)].tolist():
        share = counts[symbol] / column.size
        lines.append(f"  {counts[symbol]:>11,}  {share:>6.1%}  {name_of(symbol)}")
    return "\n".join(lines)


def _namer(problem: Problem, data_dir: AnyPath, feature: str) -> Callable[[int], str]:
    """Returns what names a feature's symbols."""
    class_names = getattr(problem, "class_names", None)
    if class_names and feature == "targets":
        return lambda symbol: f"class {class_names[symbol]}"
    if isinstance(problem, TextProblem):
        pieces = problem.vocabulary(data_dir).token_bytes
        return lambda symbol: (
            "(end)"
            if symbol == END_OF_DOCUMENT
            else repr(pieces[symbol].decode("utf-8", "replace"))
        )
    return lambda symbol: f"token {symbol}"
