"""Sequence parallelism: between blocks, the length has another name and another layout rule.

V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
(arXiv:2205.05198), section 4.2.2. Inside a block, the length is named `length`, and a mesh axis
splits the heads. Between blocks, it is named `residual_length`, and the same axis may split it. A
block then begins with an all-gather and ends with a reduce-scatter, not an all-reduce.
"""

from t2tp import mtf
from t2tp.mesh.axes import JOIN
from t2tp.mesh.layout import Layout, LayoutError

INSIDE, BETWEEN = "length", "residual_length"


def between_blocks(x: mtf.Tensor) -> mtf.Tensor:
    """Renames the length of `x`, if it has one, to its name between blocks.

    Raises:
      LayoutError: axes split `length` but not `residual_length`, so that activations would be
        gathered over these axes between blocks.
    """
    _check(x.mesh.layout)
    return _renamed(x, INSIDE, BETWEEN)


def inside_blocks(x: mtf.Tensor) -> mtf.Tensor:
    """Renames the length of `x`, if it has one, to its name inside blocks."""
    return _renamed(x, BETWEEN, INSIDE)


def _check(layout: Layout) -> None:
    inside, between = (
        [axis.name for axis in layout.axes_of(name) if axis.size > 1] for name in (INSIDE, BETWEEN)
    )
    if between[: len(inside)] != inside:
        more = [name for name in between if name not in inside]
        raise LayoutError(
            f"sequence_parallel: mesh axis {JOIN.join(inside)!r} splits {INSIDE!r}, and must split"
            f" {BETWEEN!r} first, which would otherwise be gathered between blocks: write the rule"
            f" '{BETWEEN}:{JOIN.join([*inside, *more])}'."
        )


def _renamed(x: mtf.Tensor, old: str, new: str) -> mtf.Tensor:
    return mtf.rename_dimension(x, old, new) if old in x.shape.dimension_names else x
