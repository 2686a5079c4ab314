"""A cluster of A100s whose software stack behaves as the engine does."""

import dataclasses

from t2tp.planner import ClusterFile


def engine_stack():
    """Returns a cluster whose stack recomputes, gathers and stores only as much as the engine."""
    cluster = ClusterFile.load("a100", "megatron")
    own = dict.fromkeys(("repeats_all", "weights_where_used", "gathers_again"), False)
    stack = dataclasses.replace(cluster.software, **own)
    return dataclasses.replace(cluster, stacks={cluster.stack: stack})
