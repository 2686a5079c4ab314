"""Plans one layout for more and fewer devices, with the same rows on each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from t2tp.mesh.layout import Layout, LayoutError
from t2tp.planner.cluster_file import ClusterFile
from t2tp.planner.plan import Plan
from t2tp.planner.request import Request

_FACTORS = (0.25, 0.5, 1, 2, 4, 8)


def scaled_plans(
    request: Request, cluster: ClusterFile, factors: Sequence[float] = _FACTORS
) -> list[Plan]:
    """Plans for other sizes of the mesh axis that splits the batch, the fewest devices first.

    Args:
      request: the model, layout and batch.
      cluster: the cluster.
      factors: factors by which axis and batch grow.

    Returns:
      the plans that work; only the request's own plan if no axis splits the batch.
    """
    layout = Layout.from_hparams(request.hparams)
    axis = next((each.name for each in layout.axes_of("batch")), None)
    sizes = {dim.name: dim.size for dim in layout.mesh_shape.dims}
    if axis is None:
        return [request.plan(cluster)]
    plans = []
    for factor in factors:
        count, rows = sizes[axis] * factor, request.hparams.batch_size * factor
        if count != int(count) or rows != int(rows) or count < 1:
            continue
        hparams = request.hparams.copy()
        shape = {**sizes, axis: int(count)}
        hparams.set("mesh_shape", ";".join(f"{name}:{size}" for name, size in shape.items()))
        if hparams.batch_size_unit == "sequences_per_batch":
            hparams.set("batch_size", int(rows))
        try:
            plans.append(dataclasses.replace(request, hparams=hparams).plan(cluster))
        except LayoutError:
            continue
    return plans
