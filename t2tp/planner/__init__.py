"""Predicts time, memory and traffic of a training step on a cluster, without the cluster.

A `request` is lowered as an abstract program with few layers, and `depth` extrapolates the result
to all layers. `sequence` puts the operations in order, and gives each its phase and its
collectives. Then these modules compute

    slices, fusion        the work of each operation on a processor's slices
    liveness, retention   the memory that is alive at each operation
    lowered               work and memory as numbers that do not depend on a cluster
    compute_cost, collective_cost, overlap    seconds on the cluster of a `cluster_file`
    plan                  the totals: seconds, memory, bottleneck

`stages` does this for each pipeline stage. `search` tries meshes, layouts and hparams: `candidates`
lists them, `estimate` ranks them, and the best are planned. `advice` plans single changes. `text`
and `page` print the results.
"""

from t2tp.planner.cluster_file import ClusterFile, ClusterFileError
from t2tp.planner.plan import Plan
from t2tp.planner.request import Request

__all__ = ["ClusterFile", "ClusterFileError", "Plan", "Request"]
