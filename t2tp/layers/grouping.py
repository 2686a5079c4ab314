"""Groups of tokens: an expert's capacity is a number of tokens per group."""

import math

from t2tp import mtf


def grouped_shape(shape: mtf.Shape, group_size: int) -> mtf.Shape:
    """Returns the shape of a batch's tokens in groups of equal size, the same on every mesh.

    Args:
      shape: [batch, ..., d_model].
      group_size: max tokens per group; 0: one group per row. The size is lowered until a row
        consists of whole groups, or a group of whole rows.

    Returns:
      [groups, group, d_model]. The first dimension has the name of `shape`'s first dimension, so
      that the same rule splits it. If `shape` is [batch, length, d_model] and rows have several
      groups, the result is [batch, length_groups, group, d_model].
    """
    rows, *within, d_model = shape.dims
    per_row = math.prod(dim.size for dim in within)
    size = group_size or per_row
    if size <= per_row:
        group = _largest_divisor(per_row, size)
    else:
        group = per_row * _largest_divisor(rows.size, size // per_row)
    if len(within) == 1 and group < per_row:
        groups = [rows, mtf.Dimension(f"{within[0].name}_groups", per_row // group)]
    else:
        groups = [mtf.Dimension(rows.name, rows.size * per_row // group)]
    return mtf.Shape([*groups, mtf.Dimension("group", group), d_model])


def _largest_divisor(number: int, limit: int) -> int:
    return next(n for n in range(min(number, max(limit, 1)), 0, -1) if number % n == 0)
