"""How variables are sharded at rest: between steps, and between uses.

Processors that split only the batch hold the same weights and the same optimizer state. Sharded at
rest, each holds a part of them, and weights are gathered for their use: ZeRO (S. Rajbhandari et
al., arXiv:1910.02054, section 5) and FSDP (Y. Zhao et al., arXiv:2304.11277). A dimension that is
sharded at rest has another name there, `d_model@data`: it is split over what splits `d_model`, and
over `data` within that. So a variable has two shapes, of which the optimizer, checkpoints and
initial values see the one at rest, and the model the other; a gather is a reshape from one to the
other, and so is the reduce-scatter of a gradient, the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from t2tp import upstream
from t2tp.mesh.axes import JOIN

_AT_REST = "@"


@dataclass(frozen=True)
class Storage:
    """What is sharded at rest, and over which axes of the mesh.

    Attributes:
      stage: 0: nothing. 1: the optimizer's state and the updates; weights are gathered once a step.
        2: gradients, too: those of each microbatch are reduce-scattered. 3: weights are gathered
        where a layer uses them, and again for its backward pass.
      axes: names of axes of the mesh, joined by `+`; empty: those that split the batch.
      rules: which dimension is sharded over which axes, as layout rules: `d_model:data`. Empty: of
        each variable with two or more dimensions the first one that the axes divide, if possible
        one that nothing splits.
      prefetch: number of layers that gathers run ahead of the computation in stage 3.
    """

    stage: int = 0
    axes: str = ""
    rules: str = ""
    prefetch: int = 1


def sharded_at_rest(dim: upstream.Dimension, axes: Sequence[str]) -> upstream.Dimension:
    """Returns the name at rest of a dimension that is sharded over these axes of the mesh."""
    return upstream.Dimension(f"{dim.name}{_AT_REST}{JOIN.join(axes)}", dim.size)


def name_in_use(dim_name: str) -> str:
    """Returns the name of a dimension where it is used: without the axes that shard it at rest."""
    return dim_name.partition(_AT_REST)[0]


def axes_at_rest(dim_name: str) -> list[str]:
    """Returns the names of the axes that shard a dimension only at rest."""
    _, _, axes = dim_name.partition(_AT_REST)
    return axes.split(JOIN) if axes else []
