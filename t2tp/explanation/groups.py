"""What text and page show a line each: variables, activations and collectives, those of like layers
together."""

from __future__ import annotations

from t2tp.explanation import phrases
from t2tp.explanation.alike import Alike, alike, without_numbers
from t2tp.explanation.contents import Activation, Contents, CutTensor, Move, Share, VariableLine

# Groups of activations that are shown.
LARGEST = 20


def variables(contents: Contents) -> list[Alike[VariableLine]]:
    """The variables, in the order of the step."""

    def rest(line: VariableLine) -> tuple:
        said = phrases.moves_of_variable(contents.moves, line.tensor.name)
        kept = [_look(slot) for slot in line.slots]
        return (_look(line.tensor), phrases.precision(line), line.trainable, *kept, *said)

    return alike(contents.variables, lambda line: line.tensor.name, rest)


def features(contents: Contents) -> list[Alike[Activation]]:
    """What the step is fed."""
    fed = [a for a in contents.activations if a.is_fed]
    return alike(fed, lambda a: a.tensor.name, lambda a: _look(a.tensor))


def activations(contents: Contents) -> list[Alike[Activation]]:
    """What the step computes, the largest slices first."""

    def rest(activation: Activation) -> tuple:
        said = phrases.moves_of_tensor(contents.moves, activation.tensor.name)
        return (_look(activation.tensor), phrases.facts(activation), *said)

    return alike(contents.computed(), lambda a: a.tensor.name, rest)


def moves(contents: Contents) -> dict[tuple[str, tuple[str, ...]], list[Alike[Move]]]:
    """The collectives, by kind and mesh axes."""

    def rest(move: Move) -> tuple:
        return (
            move.bytes,
            move.phase,
            move.in_loop,
            move.times,
            tuple(map(_anywhere, move.shares)),
        )

    by_kind: dict[tuple[str, tuple[str, ...]], list[Move]] = {}
    for move in contents.moves:
        by_kind.setdefault((move.kind, move.axes), []).append(move)
    return {
        kind: alike(these, lambda move: move.shares[0].tensor, rest)
        for kind, these in by_kind.items()
    }


def _look(tensor: CutTensor) -> tuple:
    return (tensor.describe(), tensor.dtype)


def _anywhere(share: Share) -> tuple:
    """A collective's share without the number of its layer."""
    of = without_numbers(share.gradient_of or "")
    return (without_numbers(share.tensor), share.bytes, share.over, of)
