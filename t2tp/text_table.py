"""Tables in plain text."""

from collections.abc import Container, Sequence


def text_table(rows: Sequence[Sequence[str]], left: Container[int] = ()) -> str:
    """Formats rows of cells with aligned columns; the first row has the headings.

    The columns in `left` are aligned on the left, other columns on the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        aligned = (cell.ljust(n) if i in left else cell.rjust(n) for i, (cell, n) in cells)
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)
