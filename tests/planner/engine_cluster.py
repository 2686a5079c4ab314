"""A cluster of A100s whose software recomputes as the engine does."""

import dataclasses

from t2tp.planner import ClusterFile


def engine_stack():
    """A cluster whose software recomputes and holds what t2tp's engine does, and no more."""
    cluster = ClusterFile.load("a100", "megatron")
    stack = dataclasses.replace(cluster.software, repeats_all=False, weights_where_used=False)
    return dataclasses.replace(cluster, stacks={cluster.stack: stack})
