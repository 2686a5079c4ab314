"""Tables of the share of padding that a problem's batches will have in rows of some lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from t2tp.problems.columns import Column
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.problem import Problem
from t2tp.problems.rows import Texts, bucketed, one_a_row, packed, padding_share
from t2tp.problems.stream import DATA_ORDER
from t2tp.problems.text_to_class import Text2ClassProblem
from t2tp.problems.text_to_text import PairProblem

# Of the windows of running text.
_WINDOWS = (128, 512, 2048)


def padding_table(problem: Problem, columns: Mapping[str, Column], split: str) -> str:
    """Says how much padding there will be, for each way in which the problem arranges its rows.

    Args:
        problem: of any family.
        columns: what is stored of the split.
        split: its name, for the heading.

    Returns:
        Lines; "" for what has no padding, as pictures have none.
    """
    if isinstance(problem, PairProblem):
        texts = {"inputs": columns["inputs"], "targets": columns["targets"]}
        return _of_rows(Texts(texts, split, split), arranged=True)
    if isinstance(problem, Text2ClassProblem):
        return _of_rows(Texts({"inputs": columns["inputs"]}, split, split), arranged=False)
    if isinstance(problem, LanguageModelProblem):
        return _of_windows(columns["targets"].size, split)
    return ""


def _of_rows(texts: Texts, arranged: bool) -> str:
    """Of rows that hold whole examples."""
    lengths = np.concatenate([lengths.max(0) for _, lengths in texts.lengths()])
    names = ("padded", "packed", "bucketed") if arranged else ("padded",)
    table = [[f"padding in rows of a length, in {texts.split}", *names, "left out"]]
    # Up to a length that holds nearly all.
    most = 1 << max(4, int(np.percentile(lengths, 99)).bit_length())
    for length in (most, 2 * most, 4 * most):
        shares = [padding_share(texts, one_a_row(texts, length), length)]
        if arranged:
            shares.append(padding_share(texts, packed(texts, length, DATA_ORDER), length))
            shares.append(_bucketed_share(texts, length))
        left_out = f"{(lengths > length).mean():.2%}"
        table.append([f"{length:,}", *(f"{share:.1%}" for share in shares), left_out])
    return _aligned(table)


def _bucketed_share(texts: Texts, length: int) -> float:
    """Of batches of pairs of like length, but for the last of each length, which is filled up."""
    padding = positions = 0.0
    for size, plan in bucketed(texts, length):
        padding += padding_share(texts, plan, size) * len(plan) * size
        positions += len(plan) * size
    return padding / positions


def _of_windows(tokens: int, split: str) -> str:
    """Of windows of running text, in which only the end of the last one is padding."""
    table = [[f"padding in windows of a length, in {split}", "windows", "padding"]]
    for length in _WINDOWS:
        windows = -(-tokens // length)
        padding = 1 - tokens / (windows * length)
        table.append([f"{length:,}", f"{windows:,}", f"{padding:.3%}"])
    return _aligned(table)


def _aligned(table: Sequence[Sequence[str]]) -> str:
    """Writes rows under each other, aligned on the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "   ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in table
    )
