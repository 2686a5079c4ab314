"""Mesh shapes and layout rules as text: `data:2;model:4`, `batch:data;d_ff:model`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t2tp import upstream
from t2tp.mesh.axes import JOIN

_PAIR = re.compile(r"^\s*([A-Za-z_][\w\-]*)\s*:\s*([^\s:]+)\s*$")
_AXES = re.compile(r"^[^\s:;,+]+(\+[^\s:;,+]+)*$")


class LayoutError(ValueError):
    """A mesh shape or layout that cannot work."""


def _pairs(text: str, what: str, example: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"[;,]", text):
        if not part.strip():
            continue
        match = _PAIR.match(part)
        if match is None:
            raise LayoutError(
                f"{what} {text!r}: {part.strip()!r} is not of the form {example.split(';')[0]!r}"
                f" (pairs are separated by ';', as in {example!r})."
            )
        yield match.group(1), match.group(2)


def parse_mesh_shape(mesh_shape: str | Mapping[str, int] | upstream.Shape) -> upstream.Shape:
    """Reads a mesh shape such as `data:2;model:4`; the empty string is a mesh of one processor.

    A dictionary such as `{"data": 2, "model": 4}` may replace the text.

    Raises:
      LayoutError: a pair is malformed, a size is not a positive integer, an axis comes twice.
    """
    if isinstance(mesh_shape, upstream.Shape):
        return mesh_shape
    mesh_shape = _as_text(mesh_shape)
    axes: dict[str, int] = {}
    for name, size in _pairs(mesh_shape, "Mesh shape", "data:2;model:4"):
        if not size.isdecimal() or int(size) == 0:
            raise LayoutError(
                f"Mesh shape {mesh_shape!r}: the size of axis {name!r} must be a positive integer,"
                f" not {size!r}."
            )
        if name in axes:
            raise LayoutError(f"Mesh shape {mesh_shape!r} names axis {name!r} twice.")
        axes[name] = int(size)
    return upstream.Shape([upstream.Dimension(name, size) for name, size in axes.items()])


def _as_text(pairs: str | Mapping[str, Any]) -> str:
    if isinstance(pairs, str):
        return pairs
    return ";".join(
        f"{name}:{value if isinstance(value, str | int) else JOIN.join(map(str, value))}"
        for name, value in pairs.items()
    )


def parse_rules(
    rules: str | Mapping[str, str | Sequence[str]], what: str = "Layout"
) -> list[tuple[str, tuple[str, ...]]]:
    """Reads layout rules such as `batch:data+expert;d_ff:model` as (dimension, axes) pairs.

    A dictionary such as `{"batch": ["data", "expert"], "d_ff": "model"}` may replace the text.

    `what` is the noun for the text in errors.

    Raises:
      LayoutError: a pair is malformed, or names an axis twice.
    """
    rules = _as_text(rules)
    pairs = dict.fromkeys(_pairs(rules, what, "batch:data;d_ff:model"))
    split = [(dim, tuple(axes.split(JOIN))) for dim, axes in pairs]
    for dim, axes in split:
        if "" in axes or len(set(axes)) < len(axes):
            raise LayoutError(
                f"{what} {rules!r}: {dim}:{JOIN.join(axes)} must name different axes, as in"
                " 'batch:data+expert'."
            )
    return split


def parse_axes(axes: str, what: str) -> list[str]:
    """Reads names of axes such as `pod+data`; the empty string contains no name.

    Raises:
      LayoutError: they are malformed.
    """
    if axes and not _AXES.match(axes):
        raise LayoutError(f"{what}={axes!r} must be axes, as in 'data' or 'pod+data'.")
    return axes.split(JOIN) if axes else []


def describe(shape: upstream.Shape) -> str:
    """Formats a shape: `[batch=8, length=128]`."""
    return "[" + ", ".join(f"{dim.name}={dim.size}" for dim in shape.dims) + "]"
