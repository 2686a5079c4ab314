"""A cluster of A100s whose software recomputes as the engine does."""

import dataclasses

from t2tp.planner import ClusterFile


def engine_stack():
    """A cluster whose software recomputes, gathers and holds what the engine does, and no more."""
    cluster = ClusterFile.load("a100", "megatron")
    own = dict.fromkeys(("repeats_all", "weights_where_used", "gathers_again"), False)
    stack = dataclasses.replace(cluster.software, **own)
    return dataclasses.replace(cluster, stacks={cluster.stack: stack})
