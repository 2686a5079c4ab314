"""Groups the variables, activations and collectives of a report: one line per group."""

from t2tp.layout_report import wording
from t2tp.layout_report.layer_groups import LayerGroup, group_layers, without_layer_indices
from t2tp.layout_report.report import (
    Activation,
    CollectiveLine,
    CollectiveUse,
    ReportData,
    SlicedTensor,
    VariableLine,
)

# Number of activation groups that are shown.
LARGEST = 20


def variables(data: ReportData) -> list[LayerGroup[VariableLine]]:
    """Groups the variables."""

    def key(line: VariableLine) -> tuple:
        uses = wording.collectives_of_variable(data, line.tensor.name)
        slots = [_shape(slot) for slot in line.slots]
        return (_shape(line.tensor), wording.precision(line), line.trainable, *slots, *uses)

    return group_layers(data.variables, lambda line: line.tensor.name, key)


def features(data: ReportData) -> list[LayerGroup[Activation]]:
    """Groups the features."""
    fed = [a for a in data.activations if a.is_fed]
    return group_layers(fed, lambda a: a.tensor.name, lambda a: _shape(a.tensor))


def activations(data: ReportData) -> list[LayerGroup[Activation]]:
    """Groups the computed activations, largest slice first."""

    def key(activation: Activation) -> tuple:
        uses = wording.collectives_of_tensor(data, activation.tensor.name)
        return (_shape(activation.tensor), wording.facts(activation), *uses)

    return group_layers(data.computed(), lambda a: a.tensor.name, key)


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


def _shape(tensor: SlicedTensor) -> tuple:
    return (tensor.describe(), tensor.dtype)


def _without_layer(use: CollectiveUse) -> tuple:
    """Returns a key of the use that is equal in all layers."""
    of = without_layer_indices(use.gradient_of or "")
    return (without_layer_indices(use.tensor), use.bytes, use.over, of)
