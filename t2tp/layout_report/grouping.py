"""Groups the variables, activations and collectives of a report: one line per group."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from t2tp.layout_report import wording
from t2tp.layout_report.report import (
    Activation,
    CollectiveLine,
    ReportData,
    SlicedTensor,
    VariableLine,
)
from t2tp.mesh.layer_names import LayerGroup, group_layers, without_layer_indices
from t2tp.step.attribution import CollectiveUse

# Number of activation groups to show.
LARGEST = 20

_Line = TypeVar("_Line", bound=VariableLine | Activation)


class Card(NamedTuple):
    """A tensor, or the first of several layers' tensors that differ only in their names.

    For several tensors, `name` is a pattern of the names, with the number of tensors.
    """

    name: str
    tensor: SlicedTensor
    facts: list[str]


def variables(data: ReportData) -> list[Card]:
    """Groups the variables."""

    def facts(line: VariableLine) -> list[str]:
        uses = wording.collectives_of_variable(data, line.tensor.name)
        return [wording.precision(line), wording.slots(line), *uses]

    return _cards(data.variables, facts)


def features(data: ReportData) -> list[Card]:
    """Groups the features."""
    return _cards([a for a in data.activations if a.is_fed], lambda _: [])


def activations(data: ReportData) -> list[Card]:
    """Groups the computed activations, largest slice first."""

    def facts(activation: Activation) -> list[str]:
        uses = wording.collectives_of_tensor(data, activation.tensor.name)
        return [wording.facts(activation), *uses]

    return _cards(data.computed(), facts)


def _cards(lines: Iterable[_Line], facts: Callable[[_Line], list[str]]) -> list[Card]:
    """Returns a card for each group of tensors with equal facts."""
    groups: list[LayerGroup[_Line]] = group_layers(
        lines,
        lambda line: line.tensor.name,
        lambda line: (line.tensor.describe(), line.tensor.dtype, *facts(line)),
    )
    return [
        Card(group.name + group.times, group.first.tensor, [*filter(None, facts(group.first))])
        for group in groups
    ]


def collectives(
    data: ReportData,
) -> dict[tuple[str, tuple[str, ...]], list[LayerGroup[CollectiveLine]]]:
    """Groups the collectives of each kind and mesh axes."""

    def key(collective: CollectiveLine) -> tuple:
        return (
            collective.bytes,
            collective.phase,
            collective.in_loop,
            collective.times,
            tuple(map(_without_layer, collective.uses)),
        )

    by_kind: dict[tuple[str, tuple[str, ...]], list[CollectiveLine]] = {}
    for collective in data.collectives:
        by_kind.setdefault((collective.kind, collective.axes), []).append(collective)
    return {
        kind: group_layers(lines, lambda collective: collective.uses[0].tensor, key)
        for kind, lines in by_kind.items()
    }


def _without_layer(use: CollectiveUse) -> tuple:
    """Returns a key without layer indices."""
    of = without_layer_indices(use.gradient_of or "")
    return (without_layer_indices(use.tensor), use.bytes, use.over, of)
