"""Predicts time, memory and traffic of a training step on a cluster, without the cluster.

A `request` is lowered as an abstract program, with one layer of each kind (`depth`). `sequence`
puts its operations in order; `slices` and `fusion` say what a processor computes, `liveness` and
`retention` what it holds; `lowered` has all of that as numbers. `compute_cost` and
`collective_cost` give them the seconds of a `cluster_file`, and `plan` adds them up.
"""

from t2tp.planner.cluster_file import ClusterFile, ClusterFileError
from t2tp.planner.plan import Plan
from t2tp.planner.request import Request

__all__ = ["ClusterFile", "ClusterFileError", "Plan", "Request"]
