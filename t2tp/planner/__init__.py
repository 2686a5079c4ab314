"""Predicts time, memory and traffic of a training step on a cluster, without the cluster.

A `request` is lowered as an abstract program with few layers, and `depth` extrapolates the result
to all layers. `t2tp.step` counts the program's work, traffic and memory. Then these modules compute

    compute_cost, collective_cost, overlap    seconds on the cluster of a `cluster_file`
    plan                                      the totals: seconds, memory, bottleneck

`stages` does this for each pipeline stage. `search` tries meshes, layouts and hparams: `candidates`
lists them, `estimate` ranks them, and the best are planned. `report` prints the results.
"""

from t2tp.planner.cluster_file import ClusterFile, ClusterFileError
from t2tp.planner.plan import Plan
from t2tp.planner.request import Request

__all__ = ["ClusterFile", "ClusterFileError", "Plan", "Request"]
