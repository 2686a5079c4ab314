"""The report of `t2tp_datagen --inspect`: examples, lengths, token counts and padding."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from t2tp.problems.data.columns import Column
from t2tp.problems.data.row_layout import RowTexts, bucketed, one_per_row, pack, padding_share
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.mixture import Mixture
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.text import TextProblem
from t2tp.problems.text_to_class import Text2ClassProblem
from t2tp.problems.text_to_text import PairProblem
from t2tp.text_table import text_table

_EXAMPLES = 3
_TEXT_CHARACTERS = 300
_BAR = 40

# From light to dark.
_SHADES = " .:-=+*#%@"


def inspect(problem: Problem, data_dir: AnyPath) -> str:
    """Describes prepared data in several lines.

    Raises:
      FileNotFoundError, ValueError: as `Problem.check_prepared`.
    """
    manifest = problem.check_prepared(data_dir)
    if isinstance(problem, Mixture):
        parts_dir = problem.parts_dir(data_dir)
        return "\n\n".join(inspect(part, parts_dir) for part in problem.parts)
    parts = [f"{problem.name}\n{manifest.summary()}"]
    split = problem.splits[0]
    columns = problem.stored(data_dir, split)
    count = manifest.splits[split].examples
    for number in np.linspace(0, count - 1, min(_EXAMPLES, count)).astype(int).tolist():
        sample = problem.decode_example(data_dir, split, number)
        parts.append(f"example {number} of {split}\n{_shown(sample)}")
    for name, column in columns.items():
        if len(np.unique(column.lengths)) > 1:
            parts.append(f"lengths of {name} in {split}\n{_histogram(column.lengths)}")
    parts += frequency_tables(problem, data_dir, columns, split)
    parts.append(padding_table(problem, columns, split))
    return "\n\n".join(filter(None, parts))


def _shown(sample: Mapping[str, Any]) -> str:
    return "\n".join(f"  {name}: {_value(value)}" for name, value in sample.items())


def _value(value: Any) -> str:
    if isinstance(value, str):
        cut = " ..." if len(value) > _TEXT_CHARACTERS else ""
        return repr(value[:_TEXT_CHARACTERS]) + cut
    if isinstance(value, np.ndarray):
        return "\n" + ascii_image(value)
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)


def ascii_image(image: np.ndarray) -> str:
    """Renders integers [height, width, channels] as ASCII, a line per pixel row, max 64 columns."""
    step = -(-image.shape[1] // 64)
    grey = image[::step, ::step].mean(-1)
    shades = (grey / max(1.0, image.max()) * (len(_SHADES) - 1)).round().astype(int)
    return "\n".join("    " + "".join(_SHADES[shade] * 2 for shade in row) for row in shades)


def _histogram(lengths: np.ndarray) -> str:
    """Formats a histogram of lengths, binned between powers of two."""
    edges = 2 ** np.arange(int(lengths.max()).bit_length() + 1)
    counts = np.histogram(lengths, np.concatenate([[0], edges]))[0]
    lines = [
        f"  {low:>9,} to {high - 1:>9,}  {number:>11,}  {'#' * round(_BAR * number / counts.max())}"
        for low, high, number in zip([0, *edges], edges, counts, strict=False)
        if number
    ]
    average, longest = lengths.mean(), lengths.max()
    return "\n".join([*lines, f"  {average:,.1f} on average, {longest:,} at most"])


# Lengths of the windows of running text.
_WINDOWS = (128, 512, 2048)


def padding_table(problem: Problem, columns: Mapping[str, Column], split: str) -> str:
    """Returns a table of the fraction of padding, for each arrangement that the problem has.

    The table is "" for problems without padding, such as image problems.
    """
    if isinstance(problem, PairProblem):
        return _of_rows(RowTexts(dict(columns), split, split), arranged=True)
    if isinstance(problem, Text2ClassProblem):
        return _of_rows(RowTexts({"inputs": columns["inputs"]}, split, split), arranged=False)
    if isinstance(problem, LanguageModelProblem):
        return _of_windows(columns["targets"].size, split)
    return ""


def _of_rows(texts: RowTexts, arranged: bool) -> str:
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


def _bucketed_share(texts: RowTexts, length: int) -> float:
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
