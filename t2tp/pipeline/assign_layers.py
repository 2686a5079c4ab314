"""Assigns the layers of a stack to the stages of a pipeline."""

from collections.abc import Sequence

from t2tp.mesh.layout import Layout, LayoutError
from t2tp.mesh.stages import LAYERS


def assign_layers(
    num_layers: int, layout: Layout, partner: Sequence[Sequence[range]] = ()
) -> list[list[range]]:
    """Returns the layers of each stage, for each of its chunks.

    A stage's layers in a chunk are consecutive, and the next stage's layers follow. If the layers
    cannot be divided equally, stages in the middle get one more, because the first stage also
    computes the embedding, and the last stage the loss.

    `pipeline.layers` of the layout may set the number of layers of each stage.

    `partner` has the layers of a stack that goes through the stages together with this one; empty:
    there is none. A stage may then have no layer of this stack, and stages with more layers of the
    partner get the remaining ones. So if stages are sorted by their layers of the partner, and then
    of this stack, both numbers grow: all stages can share one graph.

    Returns:
      a list of chunks; each is a list of layer ranges, one range for each stage.

    Raises:
      LayoutError: there are too few layers, or the numbers in `pipeline.layers` do not match the
        number of layers or of stages.
    """
    stages, chunks = layout.num_stages, layout.pipeline.chunks
    if partner:
        sizes = _divided(num_layers, [len(numbers) for ranges in partner for numbers in ranges])
    else:
        sizes = _equal_sizes(num_layers, stages, chunks, layout)
        if layout.pipeline.layers:
            sizes = _given_sizes(layout.pipeline.layers, num_layers, stages * chunks)
    ranges = [range(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]
    return [ranges[c * stages : (c + 1) * stages] for c in range(chunks)]


def _divided(num_layers: int, first: Sequence[int]) -> list[int]:
    """Divides layers equally; the places with the largest numbers in `first` get the rest."""
    count = len(first)
    size, left = divmod(num_layers, count)
    # Among equal numbers, the middle is first.
    order = sorted(range(count), key=lambda i: (-first[i], i in (0, count - 1), i == count - 1, i))
    return [size + (i in order[:left]) for i in range(count)]


def _equal_sizes(num_layers: int, stages: int, chunks: int, layout: Layout) -> list[int]:
    count = stages * chunks
    if num_layers < count:
        axis = layout.axis_of(LAYERS)
        in_chunks = f" in {chunks} chunks each (pipeline_chunks)" if chunks > 1 else ""
        raise LayoutError(
            f"The rule '{LAYERS}:{axis.name if axis else ''}' makes {stages} stages{in_chunks}, and"
            f" a stack of the model has only {num_layers} layers: use at most {num_layers}"
            f" {'chunks in all' if chunks > 1 else 'stages'}."
        )
    return _divided(num_layers, [0] * count)


def _given_sizes(text: str, num_layers: int, count: int) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise LayoutError(
            f"pipeline_layers={text!r} must be numbers of layers, such as '7,8,8,7', each 1 or more"
        )
    sizes = [int(part) for part in parts]
    if len(sizes) != count or sum(sizes) != num_layers:
        raise LayoutError(
            f"pipeline_layers={text!r} are {sum(sizes)} layers in {len(sizes)} stages, and the"
            f" stack has {num_layers} layers in {count} (stages times pipeline_chunks)"
        )
    return sizes


def check_layers_match(assigned: Sequence[Sequence[range]], kinds: Sequence[object]) -> None:
    """Checks that the layers at the same position in all stages are of the same kind.

    All stages run one program, so a position cannot have experts on one stage only.

    Args:
      assigned: the result of `assign_layers`.
      kinds: the kind of each layer of the stack.

    Raises:
      LayoutError: layers at the same position differ.
    """
    for ranges in assigned:
        for place in range(max(map(len, ranges))):
            layers = [numbers[place] for numbers in ranges if place < len(numbers)]
            if len({kinds[layer] for layer in layers}) > 1:
                raise LayoutError(
                    "The stages of a pipeline must have the same kinds of layers in the same order,"
                    f" and layers {', '.join(map(str, layers))}, which have one place in different"
                    " stages, differ (in experts, or by layer_pattern): change the number of stages"
                    " or pipeline_layers so that each stage begins with the same kind."
                )
