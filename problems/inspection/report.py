"""The report of `t2tp_datagen --inspect`: examples, lengths, token counts and padding."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from t2tp.problems.inspection.frequencies import frequency_tables
from t2tp.problems.inspection.padding import padding_table
from t2tp.problems.mixture import Mixture
from t2tp.problems.problem import AnyPath, Problem

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
