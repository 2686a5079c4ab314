"""A second name for the length of a sequence, so that a layout can split it between blocks.

V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
(arXiv:2205.05198), section 4.2.2. Inside of a block the length is `length`, and a mesh axis splits
the heads; between blocks it is `residual_length`, which the same axis may split. On the way in
parts are then gathered, and on the way out what would be an allreduce is a reduce-scatter.
"""

from __future__ import annotations

from t2tp import mtf

INSIDE, BETWEEN = "length", "residual_length"


def between_blocks(x: mtf.Tensor) -> mtf.Tensor:
    """`x` with the name of the length that it has between blocks; without a length as it is."""
    return _renamed(x, INSIDE, BETWEEN)


def inside_blocks(x: mtf.Tensor) -> mtf.Tensor:
    """`x` with the name of the length that it has inside of blocks; without a length as it is."""
    return _renamed(x, BETWEEN, INSIDE)


def _renamed(x: mtf.Tensor, old: str, new: str) -> mtf.Tensor:
    return mtf.rename_dimension(x, old, new) if old in x.shape.dimension_names else x
