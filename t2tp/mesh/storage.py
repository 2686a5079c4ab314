"""ZeRO: weights and optimizer state that are sharded between their uses.

Processors that differ only in their part of the batch hold the same weights and the same optimizer
state. With ZeRO, each processor stores only a part of a variable *at rest*, while no operation uses
the variable. A weight is all-gathered before its use (S. Rajbhandari et al., arXiv:1910.02054,
section 5; FSDP: Y. Zhao et al., arXiv:2304.11277). `t2tp.ops.variables.zero_weights` makes the
gathers; `t2tp.lowering.gather_schedule` decides when they run.

A variable has two shapes. The model sees the shape in use; the optimizer, checkpoints and initial
values see the shape at rest. In the shape at rest, the sharded dimension has another name,
`d_model@data`. It is split first over the axes that split `d_model`, and then over `data`. A gather
is a reshape from the shape at rest to the shape in use, and the reduce-scatter of a gradient is a
reshape back.

The sizes in both shapes never include padding. If axes do not divide a dimension, its last slices
are padded. On `data:4`

    w [d_model=18, d_ff=30]          the shape in use
    w [d_model@data=18, d_ff=30]     the shape at rest, in slices [5, 30]
                                     rows 0-4, 5-9, 10-14, and 15-17 with two rows of zeros

`vocab` may be padded even in use, because its size comes from the data. `Layout.slice_size` counts
padding, and `Layout.slices` returns slices without it. Initial values, checkpoints and gathers
leave padding out, so a checkpoint fits every mesh. An operation that reduces a padded dimension
masks the padding first (`SpmdMeshImpl.masked`). An operation whose inputs or outputs have a padded
dimension is rejected if it does not declare `accepts_padding`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from t2tp import upstream
from t2tp.mesh.axes import JOIN

_AT_REST = "@"


@dataclass(frozen=True)
class Storage:
    """The ZeRO configuration: the stage, and which mesh axes shard which dimensions.

    Attributes:
      stage: 0: nothing is sharded. 1: optimizer state and updates are sharded; weights are gathered
        once a step. 2: gradients are sharded too, by a reduce-scatter for each microbatch. 3:
        weights are gathered where a layer uses them, and again for the layer's backward pass.
      axes: mesh axes to shard over, joined by `+`. Default: the axes that split the batch.
      rules: the dimensions to shard and their axes, as layout rules: `d_model:data`. Default: each
        variable with two or more dimensions shards one of them; see `Layout.at_rest`.
      prefetch: how many layers ahead to gather weights (stage 3).
    """

    stage: int = 0
    axes: str = ""
    rules: str = ""
    prefetch: int = 1


def sharded_at_rest(dim: upstream.Dimension, axes: Sequence[str]) -> upstream.Dimension:
    """Returns the dimension that replaces `dim` at rest if mesh axes shard it."""
    return upstream.Dimension(f"{dim.name}{_AT_REST}{JOIN.join(axes)}", dim.size)


def name_in_use(dim_name: str) -> str:
    """Returns the name of a dimension in use, without the axes that shard it at rest."""
    return dim_name.partition(_AT_REST)[0]


def axes_at_rest(dim_name: str) -> list[str]:
    """Returns the names of the axes that shard a dimension only at rest."""
    _, _, axes = dim_name.partition(_AT_REST)
    return axes.split(JOIN) if axes else []
