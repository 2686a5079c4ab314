"""Describes and compares checkpoints, in text for users."""

import datetime
import math
from dataclasses import replace

import numpy as np
import tensorflow as tf

from t2tp.checkpoint import Checkpoint
from t2tp.checkpoint.reading import TRAINABLE
from t2tp.checkpoint.variables import named_shape, saved_layout, slices_as_saved
from t2tp.mesh.storage import name_in_use
from t2tp.text_table import text_table


def describe(saved: Checkpoint) -> str:
    """Returns a table of a checkpoint's variables: named dimensions, dtype, bytes, split axes."""
    rows = [_row(saved, name) for name in sorted(saved.shapes())]
    header = ("variable", "shape", "dtype", "bytes", "split over")
    return "\n".join(
        [_headline(saved), "", text_table([header, *rows], left=(0, 1, 2, 4)), "", *_totals(saved)]
    )


def differences(first: Checkpoint, second: Checkpoint) -> list[str]:
    """Returns one line per variable that differs between two checkpoints.

    Reads one slice at a time, in the slices of the first checkpoint.

    Raises:
      UnusableCheckpointError: one of the checkpoints is damaged.
    """
    lines = []
    for name in sorted({*first.shapes(), *second.shapes()}):
        difference = _difference(first, second, name)
        if difference:
            lines.append(f"{name}: {difference}")
    return lines


def _difference(first: Checkpoint, second: Checkpoint, name: str) -> str:
    """Describes how a variable differs; "" if it does not."""
    for one, other in ((first, second), (second, first)):
        if name not in other.shapes():
            return f"only in {one.path}"
    if first.shapes()[name] != second.shapes()[name]:
        return f"shape {first.shapes()[name]} and {second.shapes()[name]}"
    kinds = [each.dtypes()[name] for each in (first, second)]
    parts = [] if kinds[0] == kinds[1] else [f"dtype {kinds[0].name} and {kinds[1].name}"]
    max_distance, count = _distance(first, second, name)
    if count:
        elements = math.prod(first.shapes()[name])
        parts.append(f"{count:,} of {elements:,} values differ, by at most {max_distance:.3g}")
    return "; ".join(parts)


def _distance(first: Checkpoint, second: Checkpoint, name: str) -> tuple[float, int]:
    """Returns the largest difference (NaN if one value is NaN), and how many values differ."""
    max_distance, count = 0.0, 0
    for each in slices_as_saved(first, name):
        (one,) = first.read([each])
        (other,) = second.read([replace(each, dtype=second.dtypes()[name])])
        wide = np.complex128 if tf.complex64 in (one.dtype, other.dtype) else np.float64
        one, other = (value.numpy().astype(wide) for value in (one, other))
        differ = (one != other) & ~((one != one) & (other != other))  # Two NaNs are equal.
        apart = np.abs(one[differ] - other[differ])
        count += apart.size
        max_distance = float(np.maximum(max_distance, apart.max(initial=0.0)))
    return max_distance, count


def _headline(saved: Checkpoint) -> str:
    when = datetime.datetime.fromtimestamp(saved.saved_at).astimezone()
    lines = [
        f"{saved.path}: step {saved.step}",
        f"saved {when.isoformat(sep=' ', timespec='seconds')}",
    ]
    if layout := saved_layout(saved):
        lines.append(str(layout))
    return ", ".join(lines)


def _row(saved: Checkpoint, name: str) -> tuple[str, ...]:
    sizes, dtype = saved.shapes()[name], saved.dtypes()[name]
    named = named_shape(saved, name)
    if named is None:
        shape = ", ".join(map(str, sizes))
    else:
        shape = ", ".join(f"{name_in_use(dim.name)}:{dim.size}" for dim in named.dims)
    return name, f"[{shape}]", dtype.name, f"{_bytes(saved, name):,}", _split(saved, name)


def _split(saved: Checkpoint, name: str) -> str:
    """Formats the split dimensions of a variable, each with its mesh axis."""
    named, layout = named_shape(saved, name), saved_layout(saved)
    if named is None or layout is None:
        return "?"
    axes = [(name_in_use(dim.name), layout.axis_of(dim.name)) for dim in named.dims]
    split = [f"{dim}:{axis.name}" for dim, axis in axes if axis is not None and axis.size > 1]
    slices = len(slices_as_saved(saved, name))
    return f"{';'.join(split)} ({slices} slices)" if split else "-"


def _totals(saved: Checkpoint) -> list[str]:
    """Formats the totals of trainable and of other variables."""
    trainable = saved.metadata.get(TRAINABLE)
    names = sorted(saved.shapes())
    if trainable is None:
        return [_total(saved, "variables", names)]
    rest = [name for name in names if name not in set(trainable)]
    return [
        _total(saved, "trainable", sorted(trainable)),
        _total(saved, "kept by the optimizer", rest),
    ]


def _total(saved: Checkpoint, what: str, names: list[str]) -> str:
    elements = sum(math.prod(saved.shapes()[name]) for name in names)
    size = sum(_bytes(saved, name) for name in names)
    return f"{what}: {len(names)} variables, {elements:,} numbers, {size:,} bytes"


def _bytes(saved: Checkpoint, name: str) -> int:
    return math.prod(saved.shapes()[name]) * saved.dtypes()[name].size
