"""Tables of the fraction of padding in a problem's batches, by the length of rows."""

from collections.abc import Mapping

import numpy as np

from t2tp.problems.data.columns import Column
from t2tp.problems.data.row_layout import Texts, bucketed, one_per_row, pack, padding_share
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.problem import Problem
from t2tp.problems.text_to_class import Text2ClassProblem
from t2tp.problems.text_to_text import PairProblem
from t2tp.text_table import text_table

# Lengths of the windows of running text.
_WINDOWS = (128, 512, 2048)


def padding_table(problem: Problem, columns: Mapping[str, Column], split: str) -> str:
    """Returns a table of the fraction of padding, for each arrangement that the problem has.

    The table is "" for problems without padding, such as image problems.
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
    """Returns the table of rows that hold complete examples."""
    lengths = np.concatenate([lengths.max(0) for _, lengths in texts.lengths()])
    names = ("padded", "packed", "bucketed") if arranged else ("padded",)
    table = [[f"padding in rows of a length, in {texts.split}", *names, "left out"]]
    # A power of two that is at least the length of 99 % of the examples.
    base_length = 1 << max(4, int(np.percentile(lengths, 99)).bit_length())
    for length in (base_length, 2 * base_length, 4 * base_length):
        shares = [padding_share(texts, one_per_row(texts, length), length)]
        if arranged:
            shares.append(padding_share(texts, pack(texts, length), length))
            shares.append(_bucketed_share(texts, length))
        left_out = f"{(lengths > length).mean():.2%}"
        table.append([f"{length:,}", *(f"{share:.1%}" for share in shares), left_out])
    return text_table(table)


def _bucketed_share(texts: Texts, length: int) -> float:
    """Returns the fraction of padding in bucketed rows; the empty rows of batches do not count."""
    padding = positions = 0.0
    for size, plan in bucketed(texts, length):
        padding += padding_share(texts, plan, size) * len(plan) * size
        positions += len(plan) * size
    return padding / positions


def _of_windows(tokens: int, split: str) -> str:
    """Returns the table of windows of running text; only the last window has padding."""
    table = [[f"padding in windows of a length, in {split}", "windows", "padding"]]
    for length in _WINDOWS:
        windows = -(-tokens // length)
        padding = 1 - tokens / (windows * length)
        table.append([f"{length:,}", f"{windows:,}", f"{padding:.3%}"])
    return text_table(table)
